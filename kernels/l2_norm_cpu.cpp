#include "kernels/l2_norm.h"

#include <cmath>

#include "kernels/detail/check.h"
#include "kernels/detail/parallel.h"
#include "kernels/detail/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/l2_norm_cpu.cpp"
#include "hwy/foreach_target.h"  // must be the first of these
#include "kernels/detail/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {
using namespace simd::HWY_NAMESPACE;
using detail::stride_or;

// Heads of all rows in one sequence.
void l2_norm_heads(const L2NormArgs& a, int64_t first, int64_t last) {
  const int64_t row_width = a.heads * a.width;
  for (int64_t item = first; item < last; ++item) {
    const int64_t r = item / a.heads;
    const int64_t offset = item % a.heads * a.width;
    const float* x = a.x + r * stride_or(a.x_stride, row_width) + offset;
    float* y = a.y + r * stride_or(a.y_stride, row_width) + offset;
    const Vec factor = set(a.scale / std::sqrt(sum_of_squares(x, a.width) + a.eps));
    for (int64_t i = 0; i < a.width; i += kLanes) {
      const int64_t n = a.width - i;
      store(hn::Mul(load(x + i, n), factor), y + i, n);
    }
  }
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {

HWY_EXPORT(l2_norm_heads);

void l2_norm(const L2NormArgs& a) {
  detail::parallel_ranges(a.pool, a.rows * a.heads, detail::grain_items(a.width), [&](int64_t first, int64_t last) {
    HWY_DYNAMIC_DISPATCH(l2_norm_heads)(a, first, last);
  });
}

}  // namespace tandem
#endif
