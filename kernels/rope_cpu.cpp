#include "kernels/rope.h"

#include <cmath>

#include "kernels/detail/check.h"
#include "kernels/detail/parallel.h"
#include "kernels/detail/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rope_cpu.cpp"
#include "hwy/foreach_target.h"  // must be the first of these
#include "kernels/detail/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {
using namespace simd::HWY_NAMESPACE;
using detail::stride_or;

// Pairs whose angles are worked out together and shared by the heads of a row.
inline constexpr int64_t kPairBlock = 64;

void rope_pairs(const float* x, int64_t pairs, const float* cosines, const float* sines, float* y) {
  int64_t j = 0;
  for (; j + kLanes <= pairs; j += kLanes) {
    Vec even;
    Vec odd;
    hn::LoadInterleaved2(Floats(), x + 2 * j, even, odd);
    const Vec c = load(cosines + j);
    const Vec s = load(sines + j);
    hn::StoreInterleaved2(hn::Sub(hn::Mul(even, c), hn::Mul(odd, s)), hn::Add(hn::Mul(even, s), hn::Mul(odd, c)),
                          Floats(), y + 2 * j);
  }
  for (; j < pairs; ++j) {  // without fused operations above, the same bits
    const float even = x[2 * j];
    const float odd = x[2 * j + 1];
    y[2 * j] = even * cosines[j] - odd * sines[j];
    y[2 * j + 1] = even * sines[j] + odd * cosines[j];
  }
}

void rope_rows(const RopeArgs& a, int64_t first, int64_t last) {
  const int64_t dim = a.table->rope_dim();
  const int64_t x_head_stride = stride_or(a.x_head_stride, dim);
  const int64_t y_head_stride = stride_or(a.y_head_stride, dim);
  float cosines[kPairBlock];
  float sines[kPairBlock];
  for (int64_t r = first; r < last; ++r) {
    const float* x = a.x + r * stride_or(a.x_row_stride, a.heads * x_head_stride);
    float* y = a.y + r * stride_or(a.y_row_stride, a.heads * y_head_stride);
    for (int64_t pair = 0; pair < dim / 2; pair += kPairBlock) {
      const int64_t pairs = std::min(kPairBlock, dim / 2 - pair);
      for (int64_t j = 0; j < pairs; ++j) {
        const double angle = static_cast<double>(a.positions[r]) * a.table->inverse_frequencies[pair + j];
        cosines[j] = static_cast<float>(std::cos(angle) * a.table->rotation_factor);
        sines[j] = static_cast<float>(std::sin(angle) * a.table->rotation_factor);
      }
      for (int64_t h = 0; h < a.heads; ++h) {
        rope_pairs(x + h * x_head_stride + 2 * pair, pairs, cosines, sines, y + h * y_head_stride + 2 * pair);
      }
    }
  }
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {

HWY_EXPORT(rope_rows);

void rope(const RopeArgs& a) {
  const int64_t row_floats = a.table->rope_dim() * (a.heads + 32);  // an angle costs as much as many products
  detail::parallel_ranges(a.pool, a.rows, detail::grain_items(row_floats), [&](int64_t first, int64_t last) {
    HWY_DYNAMIC_DISPATCH(rope_rows)(a, first, last);
  });
}

}  // namespace tandem
#endif
