#include <algorithm>

#include "kernels/detail/check.h"
#include "kernels/moe.h"

namespace tandem {

void moe_group(const MoeGroupArgs& a) {
  const int64_t pairs = a.rows * a.num_experts_chosen;
  int64_t* first = a.first_slot;
  std::fill(first, first + a.num_experts + 1, 0);
  for (int64_t p = 0; p < pairs; ++p) {
    detail::require(a.experts[p] >= 0 && a.experts[p] < a.num_experts, "moe_group", "an expert is out of range");
    ++first[a.experts[p] + 1];
  }
  for (int64_t e = 0; e < a.num_experts; ++e) first[e + 1] += first[e];
  // Counting sort without a second array: first[e] walks to the start of e + 1, then all move one place up.
  for (int64_t p = 0; p < pairs; ++p) {
    const int64_t slot = first[a.experts[p]]++;
    a.row_of_slot[slot] = static_cast<int32_t>(p / a.num_experts_chosen);
    a.slot_of_pair[p] = static_cast<int32_t>(slot);
  }
  for (int64_t e = a.num_experts; e > 0; --e) first[e] = first[e - 1];
  first[0] = 0;
}

}  // namespace tandem
