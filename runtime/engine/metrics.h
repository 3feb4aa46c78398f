#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace tandem {

/// Counts of observations up to each bound, as Prometheus wants them. Any thread.
class Histogram {
 public:
  static constexpr std::array<double, 14> kBounds = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                                     1,     2.5,  5,     10,   30,  60,   300};
  void observe(double seconds);

  /// Observations of at most kBounds[i].
  int64_t cumulative(size_t i) const;
  int64_t count() const { return count_; }
  double sum_seconds() const { return static_cast<double>(sum_nanoseconds_) * 1e-9; }

 private:
  std::array<std::atomic<int64_t>, kBounds.size()> buckets_{};
  std::atomic<int64_t> count_{0};
  std::atomic<int64_t> sum_nanoseconds_{0};
};

/// What the engine did since it started.
struct EngineMetrics {
  std::atomic<int64_t> prompt_tokens{0};
  std::atomic<int64_t> generation_tokens{0};
  std::atomic<int64_t> finished_stop{0};
  std::atomic<int64_t> finished_length{0};
  std::atomic<int64_t> cancelled{0};
  std::atomic<int64_t> failed{0};
  Histogram queue_seconds;
  Histogram time_to_first_token_seconds;  ///< from arrival
  Histogram inter_token_seconds;
  Histogram request_seconds;  ///< from arrival to the last token
};

}  // namespace tandem
