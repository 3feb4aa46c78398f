#pragma once

#include <chrono>
#include <cstdint>
#include <deque>

namespace tandem {

/// A rate over the last few seconds. Memory of one sample per add().
class RateMeter {
 public:
  using Clock = std::chrono::steady_clock;

  void add(Clock::time_point now, int64_t total_bytes);
  double bytes_per_second() const;
  /// -1 when the rate is not known or zero.
  std::chrono::seconds time_for(int64_t bytes) const;

 private:
  struct Sample {
    Clock::time_point time;
    int64_t bytes;
  };
  std::deque<Sample> samples_;
};

}  // namespace tandem
