#include "kernels/rms_norm.h"

#include <cmath>

#include "kernels/detail/check.h"
#include "kernels/detail/parallel.h"
#include "kernels/detail/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rms_norm_cpu.cpp"
#include "hwy/foreach_target.h"  // must be the first of these
#include "kernels/detail/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {
using namespace simd::HWY_NAMESPACE;
using detail::stride_or;

void rms_norm_rows(const RmsNormArgs& a, int64_t first, int64_t last) {
  for (int64_t r = first; r < last; ++r) {
    const float* x = a.x + r * stride_or(a.x_stride, a.width);
    float* y = a.y + r * stride_or(a.y_stride, a.width);
    if (a.delta != nullptr) {
      const float* delta = a.delta + r * stride_or(a.delta_stride, a.width);
      float* sum = a.sum + r * stride_or(a.sum_stride, a.width);
      for (int64_t i = 0; i < a.width; i += kLanes) {
        const int64_t n = a.width - i;
        store(hn::Add(load(x + i, n), load(delta + i, n)), sum + i, n);
      }
      x = sum;
    }
    const Vec factor = set(1.0f / std::sqrt(sum_of_squares(x, a.width) / static_cast<float>(a.width) + a.eps));
    for (int64_t i = 0; i < a.width; i += kLanes) {
      const int64_t n = a.width - i;
      store(hn::Mul(hn::Mul(load(x + i, n), factor), load(a.weight + i, n)), y + i, n);
    }
  }
}

// Heads of all rows in one sequence.
void gated_rms_norm_heads(const GatedRmsNormArgs& a, int64_t first, int64_t last) {
  const int64_t row_width = a.heads * a.width;
  for (int64_t item = first; item < last; ++item) {
    const int64_t r = item / a.heads;
    const int64_t offset = item % a.heads * a.width;
    const float* x = a.x + r * stride_or(a.x_stride, row_width) + offset;
    const float* gate = a.gate + r * stride_or(a.gate_stride, row_width) + offset;
    float* y = a.y + r * stride_or(a.y_stride, row_width) + offset;
    const Vec factor = set(1.0f / std::sqrt(sum_of_squares(x, a.width) / static_cast<float>(a.width) + a.eps));
    for (int64_t i = 0; i < a.width; i += kLanes) {
      const int64_t n = a.width - i;
      const Vec normed = hn::Mul(hn::Mul(load(x + i, n), factor), load(a.weight + i, n));
      store(hn::Mul(normed, sigmoid(load(gate + i, n))), y + i, n);
    }
  }
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {

HWY_EXPORT(rms_norm_rows);
HWY_EXPORT(gated_rms_norm_heads);

void rms_norm(const RmsNormArgs& a) {
  detail::require(a.delta == nullptr || a.sum != nullptr, "rms_norm", "delta needs a place for the sum");
  detail::parallel_ranges(a.pool, a.rows, detail::grain_items(a.width), [&](int64_t first, int64_t last) {
    HWY_DYNAMIC_DISPATCH(rms_norm_rows)(a, first, last);
  });
}

void gated_rms_norm(const GatedRmsNormArgs& a) {
  detail::parallel_ranges(a.pool, a.rows * a.heads, detail::grain_items(4 * a.width), [&](int64_t first, int64_t last) {
    HWY_DYNAMIC_DISPATCH(gated_rms_norm_heads)(a, first, last);
  });
}

}  // namespace tandem
#endif
