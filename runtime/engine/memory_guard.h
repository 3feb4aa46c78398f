#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "runtime/common/error.h"

namespace tandem {

/// MemAvailable of a file in the form of /proc/meminfo; nothing when it cannot be read.
std::optional<int64_t> available_memory_bytes(const std::filesystem::path& meminfo);

/// Watches the memory that this machine has left. Below the floor no request is let in; when it stays below, the job is
/// ended in good order, with a report, before the kernel ends whatever it picks.
class MemoryGuard {
 public:
  struct Options {
    int64_t floor_bytes = 0;  ///< 0: off
    std::chrono::milliseconds patience{10'000};
    std::chrono::milliseconds interval{500};
    std::filesystem::path meminfo = "/proc/meminfo";
    std::function<void(const Error&)> on_breach;  ///< at most once, on the guard's thread
  };

  explicit MemoryGuard(Options options);
  ~MemoryGuard();

  bool below_floor() const { return below_; }

 private:
  void run();

  const Options options_;
  std::atomic<bool> below_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace tandem
