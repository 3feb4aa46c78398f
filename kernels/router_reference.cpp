#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/detail/check.h"
#include "kernels/router.h"

namespace tandem {
namespace {

// Indices of the `count` largest values, the lower index first on ties.
std::vector<int64_t> largest(const std::vector<double>& values, int64_t count) {
  std::vector<int64_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return values[a] > values[b]; });
  order.resize(count);
  return order;
}

}  // namespace

void router_reference(const RouterArgs& a) {
  const int64_t group_size = a.num_experts / a.num_groups;
  for (int64_t r = 0; r < a.rows; ++r) {
    const float* x = a.x + r * detail::stride_or(a.x_stride, a.hidden_size);
    std::vector<double> score(a.num_experts);
    std::vector<double> choice(a.num_experts);
    for (int64_t e = 0; e < a.num_experts; ++e) {
      double logit = 0;
      for (int64_t i = 0; i < a.hidden_size; ++i) {
        logit += double{x[i]} * load_float(a.weight, a.weight_format, e * a.hidden_size + i);
      }
      score[e] = 1.0 / (1.0 + std::exp(-logit));
      choice[e] = score[e] + (a.bias != nullptr ? a.bias[e] : 0.0f);
    }
    if (a.num_groups > 1) {
      std::vector<double> group_score(a.num_groups);
      for (int64_t g = 0; g < a.num_groups; ++g) {
        const std::vector<double> members(choice.begin() + g * group_size, choice.begin() + (g + 1) * group_size);
        for (int64_t i : largest(members, std::min<int64_t>(2, group_size))) group_score[g] += members[i];
      }
      const std::vector<int64_t> kept = largest(group_score, a.num_groups_chosen);
      for (int64_t e = 0; e < a.num_experts; ++e) {
        if (std::find(kept.begin(), kept.end(), e / group_size) == kept.end()) {
          choice[e] = -std::numeric_limits<double>::infinity();
        }
      }
    }
    std::vector<int64_t> chosen = largest(choice, a.num_experts_chosen);
    std::sort(chosen.begin(), chosen.end());
    double sum = 1e-20;
    for (int64_t e : chosen) sum += score[e];
    for (int64_t i = 0; i < a.num_experts_chosen; ++i) {
      const double weight = a.normalize && a.num_experts_chosen > 1 ? score[chosen[i]] / sum : score[chosen[i]];
      a.experts[r * a.num_experts_chosen + i] = static_cast<int32_t>(chosen[i]);
      a.weights[r * a.num_experts_chosen + i] = static_cast<float>(weight * a.scaling);
    }
  }
}

}  // namespace tandem
