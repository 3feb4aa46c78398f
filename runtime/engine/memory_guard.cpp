#include "runtime/engine/memory_guard.h"

#include <charconv>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/common/log.h"
#include "runtime/common/units.h"

namespace tandem {

std::optional<int64_t> available_memory_bytes(const std::filesystem::path& meminfo) {
  constexpr std::string_view kName = "MemAvailable:";
  std::ifstream file(meminfo);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(kName)) continue;
    const size_t begin = line.find_first_not_of(' ', kName.size());
    if (begin == std::string::npos) return std::nullopt;
    int64_t kib = 0;
    const auto [end, code] = std::from_chars(line.data() + begin, line.data() + line.size(), kib);
    if (code != std::errc() || kib < 0 || kib > INT64_MAX / 1024) return std::nullopt;
    return kib * 1024;
  }
  return std::nullopt;
}

MemoryGuard::MemoryGuard(Options options) : options_(std::move(options)) {
  if (options_.floor_bytes > 0) thread_ = std::thread([this] { run(); });
}

MemoryGuard::~MemoryGuard() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void MemoryGuard::run() {
  bool was_below = false;
  std::chrono::steady_clock::time_point since{};
  std::unique_lock lock(mutex_);
  do {
    const auto available = available_memory_bytes(options_.meminfo);
    below_ = available && *available < options_.floor_bytes;
    const auto now = std::chrono::steady_clock::now();
    if (!std::exchange(was_below, below_.load()) && below_) {
      since = now;
      log_warn("memory below the floor, no requests are let in",
               {{"available", format_bytes(*available)}, {"floor", format_bytes(options_.floor_bytes)}});
    }
    if (!below_ || now - since < options_.patience) continue;
    const Error error(ErrorKind::memory,
                      "this machine has " + format_bytes(*available) + " of memory left, below the floor of " +
                          format_bytes(options_.floor_bytes) + " for " + format_duration(now - since),
                      options_.meminfo.string(),
                      "end other programs on this machine, lower the context, or lower --memory-floor");
    lock.unlock();
    if (options_.on_breach) options_.on_breach(error);
    return;
  } while (!changed_.wait_for(lock, options_.interval, [&] { return ending_; }));
}

}  // namespace tandem
