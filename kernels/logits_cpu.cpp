#include "kernels/logits.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/detail/check.h"
#include "kernels/detail/parallel.h"
#include "kernels/detail/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/logits_cpu.cpp"
#include "hwy/foreach_target.h"  // must be the first of these
#include "kernels/detail/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {
using namespace simd::HWY_NAMESPACE;

inline constexpr float kLowest = -std::numeric_limits<float>::infinity();

/// Values with NaN, and what is not there, as the lowest.
HWY_INLINE Vec load_logits(const float* x, int64_t count) {
  const Vec v = load(x, count);
  const auto counts = hn::FirstN(Floats(), static_cast<size_t>(std::min(kLanes, count)));
  return hn::IfThenElse(hn::And(counts, hn::Eq(v, v)), v, set(kLowest));
}

HWY_INLINE float largest_of(const float* x, int64_t count) {
  Vec largest = set(kLowest);
  for (int64_t i = 0; i < count; i += kLanes) largest = hn::Max(largest, load_logits(x + i, count - i));
  return max_lanes(largest);
}

/// sum(e^(x - largest)): fp32 over a stretch of columns, fp64 over stretches.
HWY_INLINE double sum_of_exps(const float* x, int64_t count, float largest) {
  constexpr int64_t kStretch = 1024;
  double total = 0.0;
  for (int64_t first = 0; first < count; first += kStretch) {
    const int64_t end = std::min(first + kStretch, count);
    Vec sum = zero();
    for (int64_t i = first; i < end; i += kLanes) {
      sum = hn::Add(sum, exp(hn::Sub(load_logits(x + i, end - i), set(largest))));
    }
    total += sum_lanes(sum);
  }
  return total;
}

void argmax_row(const float* x, int64_t count, int32_t* token, float* value) {
  const float largest = largest_of(x, count);
  *value = largest;
  *token = 0;  // of a row of nothing but NaN
  for (int64_t i = 0; i < count; i += kLanes) {
    const intptr_t lane = hn::FindFirstTrue(Floats(), hn::Eq(load_logits(x + i, count - i), set(largest)));
    if (lane >= 0) {
      *token = static_cast<int32_t>(i + lane);
      return;
    }
  }
}

void log_sum_exp_row(const float* x, int64_t count, float* y) {
  const float largest = largest_of(x, count);
  *y = std::isinf(largest) ? largest : static_cast<float>(largest + std::log(sum_of_exps(x, count, largest)));
}

void log_softmax_row(const float* x, int64_t count, float* y) {
  const float largest = largest_of(x, count);
  // Two small subtractions keep digits that one of a large sum would lose.
  const Vec log_sum = set(static_cast<float>(std::log(sum_of_exps(x, count, largest))));
  for (int64_t i = 0; i < count; i += kLanes) {
    store(hn::Sub(hn::Sub(load_logits(x + i, count - i), set(largest)), log_sum), y + i, count - i);
  }
}

void top_logits_row(const float* x, int64_t count, int64_t k, int32_t* tokens, float* values) {
  int64_t kept = 0;
  for (int64_t i = 0; i < count; i += kLanes) {
    const Vec v = load_logits(x + i, count - i);
    // Once the list is full, nearly all vectors hold nothing better than its last entry.
    if (kept == k && hn::AllFalse(Floats(), hn::Gt(v, set(values[k - 1])))) continue;
    HWY_ALIGN float lanes[kLanes];
    store(v, lanes);
    for (int64_t lane = 0; lane < std::min(kLanes, count - i); ++lane) {
      if (kept == k && !(lanes[lane] > values[k - 1])) continue;
      int64_t at = kept < k ? kept++ : k - 1;
      for (; at > 0 && lanes[lane] > values[at - 1]; --at) {
        values[at] = values[at - 1];
        tokens[at] = tokens[at - 1];
      }
      values[at] = lanes[lane];
      tokens[at] = static_cast<int32_t>(i + lane);
    }
  }
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {

HWY_EXPORT(argmax_row);
HWY_EXPORT(log_sum_exp_row);
HWY_EXPORT(log_softmax_row);
HWY_EXPORT(top_logits_row);

namespace {

/// Calls fn(row, its logits) for all rows.
template <typename Fn>
void for_rows(const LogitRows& x, const char* operation, Fn&& fn) {
  detail::require(x.vocab_size >= 1, operation, "vocab_size must be at least 1");
  detail::parallel_ranges(x.pool, x.rows, detail::grain_items(x.vocab_size), [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) fn(r, x.logits + r * detail::stride_or(x.stride, x.vocab_size));
  });
}

}  // namespace

void argmax(const LogitRows& x, int32_t* tokens, float* values) {
  for_rows(x, "argmax", [&](int64_t r, const float* logits) {
    float value = 0.0f;
    HWY_DYNAMIC_DISPATCH(argmax_row)(logits, x.vocab_size, tokens + r, &value);
    if (values != nullptr) values[r] = value;
  });
}

void log_sum_exp(const LogitRows& x, float* y) {
  for_rows(x, "log_sum_exp", [&](int64_t r, const float* logits) {
    HWY_DYNAMIC_DISPATCH(log_sum_exp_row)(logits, x.vocab_size, y + r);
  });
}

void log_softmax(const LogitRows& x, float* y, int64_t y_stride) {
  for_rows(x, "log_softmax", [&](int64_t r, const float* logits) {
    HWY_DYNAMIC_DISPATCH(log_softmax_row)(logits, x.vocab_size, y + r * detail::stride_or(y_stride, x.vocab_size));
  });
}

void top_logits(const LogitRows& x, int64_t k, int32_t* tokens, float* values) {
  detail::require(k >= 1 && k <= std::min(kMaxTopLogits, x.vocab_size), "top_logits",
                  "k must be 1..min(64, vocab_size)");
  for_rows(x, "top_logits", [&](int64_t r, const float* logits) {
    HWY_DYNAMIC_DISPATCH(top_logits_row)(logits, x.vocab_size, k, tokens + r * k, values + r * k);
  });
}

}  // namespace tandem
#endif
