#include "runtime/engine/metrics.h"

#include <cmath>

namespace tandem {

void Histogram::observe(double seconds) {
  for (size_t i = 0; i < kBounds.size(); ++i) {
    if (seconds > kBounds[i]) continue;
    ++buckets_[i];
    break;
  }
  ++count_;
  sum_nanoseconds_ += std::llround(seconds * 1e9);
}

int64_t Histogram::cumulative(size_t i) const {
  int64_t total = 0;
  for (size_t b = 0; b <= i; ++b) total += buckets_[b];
  return total;
}

}  // namespace tandem
