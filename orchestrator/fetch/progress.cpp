#include "orchestrator/fetch/progress.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "orchestrator/fetch/fetch.h"
#include "runtime/common/error.h"
#include "runtime/common/units.h"

namespace tandem {
namespace {

constexpr auto kWindow = std::chrono::seconds(5);

std::string percent(int64_t done, int64_t total) {
  // 100 % is for "all of it", never for a rounded 99.6.
  const double share = total <= 0 ? 1.0 : static_cast<double>(done) / static_cast<double>(total);
  char text[16];
  std::snprintf(text, sizeof text, "%3d%%", static_cast<int>(std::clamp(share, 0.0, 1.0) * 100.0));
  return text;
}

}  // namespace

void RateMeter::add(Clock::time_point now, int64_t total_bytes) {
  samples_.push_back({now, total_bytes});
  while (samples_.size() > 2 && now - samples_[1].time >= kWindow) samples_.pop_front();
}

double RateMeter::bytes_per_second() const {
  if (samples_.size() < 2) return 0;
  const double seconds = std::chrono::duration<double>(samples_.back().time - samples_.front().time).count();
  return seconds <= 0 ? 0 : static_cast<double>(samples_.back().bytes - samples_.front().bytes) / seconds;
}

std::chrono::seconds RateMeter::time_for(int64_t bytes) const {
  const double rate = bytes_per_second();
  if (rate < 1) return std::chrono::seconds(-1);
  return std::chrono::seconds(static_cast<int64_t>(static_cast<double>(std::max<int64_t>(bytes, 0)) / rate + 0.5));
}

std::string format_progress(const FetchProgress& progress) {
  switch (progress.phase) {
    case FetchProgress::Phase::listing:
      return "asking for the list of files";
    case FetchProgress::Phase::waiting_for_lock:
      return "waiting for another fetch of the same repository";
    case FetchProgress::Phase::done:
      return format_bytes(progress.bytes_total) + " in " + std::to_string(progress.files_total) + " files, all there";
    case FetchProgress::Phase::verifying:
    case FetchProgress::Phase::downloading:
      break;
  }
  std::string line = format_bytes(progress.bytes_done) + " of " + format_bytes(progress.bytes_total) + "  " +
                     percent(progress.bytes_done, progress.bytes_total);
  if (progress.bytes_per_second >= 1) line += "  " + format_rate(progress.bytes_per_second);
  if (progress.remaining.count() >= 0) line += "  " + format_duration(progress.remaining) + " left";
  if (progress.phase == FetchProgress::Phase::verifying) line += "  verifying";
  if (!progress.message.empty()) return line + "  (" + printable(progress.message, 200) + ")";
  if (!progress.file.empty()) line += "  " + printable(progress.file, 80);
  return line;
}

}  // namespace tandem
