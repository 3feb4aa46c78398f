#include "kernels/detail/check.h"
#include "kernels/moe.h"

namespace tandem {
using detail::stride_or;

void moe_combine_reference(const MoeCombineArgs& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t i = 0; i < a.width; ++i) {
      double sum = 0;
      for (int64_t c = 0; c < a.num_experts_chosen; ++c) {
        const int64_t pair = r * a.num_experts_chosen + c;
        const int64_t slot = a.slot_of_pair != nullptr ? a.slot_of_pair[pair] : pair;
        sum += double{a.weights[pair]} * a.expert_outputs[slot * stride_or(a.expert_outputs_stride, a.width) + i];
      }
      if (a.shared != nullptr) sum += a.shared[r * stride_or(a.shared_stride, a.width) + i];
      a.y[r * stride_or(a.y_stride, a.width) + i] = static_cast<float>(sum);
    }
  }
}

}  // namespace tandem
