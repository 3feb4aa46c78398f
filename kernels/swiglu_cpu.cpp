#include "kernels/swiglu.h"

#include "kernels/detail/check.h"
#include "kernels/detail/parallel.h"
#include "kernels/detail/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/swiglu_cpu.cpp"
#include "hwy/foreach_target.h"  // must be the first of these
#include "kernels/detail/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {
using namespace simd::HWY_NAMESPACE;
using detail::stride_or;

// Blocks of columns of all rows in one sequence.
void swiglu_blocks(const SwigluArgs& a, int64_t first, int64_t last) {
  const int64_t blocks = detail::ceil_div(a.width, detail::kColumnBlock);
  const Vec limit = set(a.limit);
  for (int64_t item = first; item < last; ++item) {
    const int64_t r = item / blocks;
    const int64_t begin = item % blocks * detail::kColumnBlock;
    const int64_t end = std::min(begin + detail::kColumnBlock, a.width);
    const float* gate = a.gate + r * stride_or(a.gate_stride, a.width);
    const float* up = a.up + r * stride_or(a.up_stride, a.width);
    float* y = a.y + r * stride_or(a.y_stride, a.width);
    for (int64_t i = begin; i < end; i += kLanes) {
      const int64_t n = end - i;
      Vec activation = silu(load(gate + i, n));
      Vec factor = load(up + i, n);
      if (a.limit > 0) {
        activation = hn::Min(activation, limit);
        factor = hn::Max(hn::Neg(limit), hn::Min(factor, limit));
      }
      store(hn::Mul(activation, factor), y + i, n);
    }
  }
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {

HWY_EXPORT(swiglu_blocks);

void swiglu(const SwigluArgs& a) {
  const int64_t blocks = a.rows * detail::ceil_div(a.width, detail::kColumnBlock);
  detail::parallel_ranges(a.pool, blocks, detail::grain_items(2 * detail::kColumnBlock),
                          [&](int64_t first, int64_t last) {
                            HWY_DYNAMIC_DISPATCH(swiglu_blocks)
                            (a, first, last);
                          });
}

}  // namespace tandem
#endif
