#include "kernels/moe.h"

#include "kernels/detail/check.h"
#include "kernels/detail/parallel.h"
#include "kernels/detail/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/moe_cpu.cpp"
#include "hwy/foreach_target.h"  // must be the first of these
#include "kernels/detail/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {
using namespace simd::HWY_NAMESPACE;
using detail::stride_or;

// Blocks of columns of all rows in one sequence.
void moe_combine_blocks(const MoeCombineArgs& a, int64_t first, int64_t last) {
  const int64_t blocks = detail::ceil_div(a.width, detail::kColumnBlock);
  const int64_t outputs_stride = stride_or(a.expert_outputs_stride, a.width);
  for (int64_t item = first; item < last; ++item) {
    const int64_t r = item / blocks;
    const int64_t begin = item % blocks * detail::kColumnBlock;
    const int64_t end = std::min(begin + detail::kColumnBlock, a.width);
    const float* shared = a.shared != nullptr ? a.shared + r * stride_or(a.shared_stride, a.width) : nullptr;
    float* y = a.y + r * stride_or(a.y_stride, a.width);
    for (int64_t i = begin; i < end; i += kLanes) {
      const int64_t n = end - i;
      Vec sum = zero();
      for (int64_t c = 0; c < a.num_experts_chosen; ++c) {
        const int64_t pair = r * a.num_experts_chosen + c;
        const int64_t slot = a.slot_of_pair != nullptr ? a.slot_of_pair[pair] : pair;
        sum = hn::MulAdd(set(a.weights[pair]), load(a.expert_outputs + slot * outputs_stride + i, n), sum);
      }
      if (shared != nullptr) sum = hn::Add(sum, load(shared + i, n));
      store(sum, y + i, n);
    }
  }
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {

HWY_EXPORT(moe_combine_blocks);

void moe_combine(const MoeCombineArgs& a) {
  const int64_t blocks = a.rows * detail::ceil_div(a.width, detail::kColumnBlock);
  const int64_t grain = detail::grain_items(detail::kColumnBlock * (a.num_experts_chosen + 2));
  detail::parallel_ranges(a.pool, blocks, grain, [&](int64_t first, int64_t last) {
    HWY_DYNAMIC_DISPATCH(moe_combine_blocks)(a, first, last);
  });
}

}  // namespace tandem
#endif
