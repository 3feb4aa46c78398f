#include "kernels/router.h"

#include <cmath>
#include <limits>
#include <utility>

#include "kernels/detail/check.h"
#include "kernels/detail/parallel.h"
#include "kernels/detail/scratch.h"
#include "kernels/detail/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/router_cpu.cpp"
#include "hwy/foreach_target.h"  // must be the first of these
#include "kernels/detail/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {
using namespace simd::HWY_NAMESPACE;
using detail::stride_or;

// Sixteen running sums a logit on every machine, however many vectors they take.
inline constexpr int64_t kSums = 16;
inline constexpr int64_t kSumVectors = kSums / kLanes;
inline constexpr int64_t kExperts = 4;  // rows of the weight that share a load of x

template <FloatFormat kFormat, int64_t kCount>
HWY_INLINE void dot(const RouterArgs& a, int64_t expert, const float* x, float* logits) {
  Vec sums[kCount][kSumVectors];
  TANDEM_UNROLL
  for (int64_t e = 0; e < kCount; ++e) {
    TANDEM_UNROLL
    for (int64_t j = 0; j < kSumVectors; ++j) sums[e][j] = zero();
  }
  for (int64_t i = 0; i < a.hidden_size; i += kSums) {
    TANDEM_UNROLL
    for (int64_t j = 0; j < kSumVectors; ++j) {
      const int64_t at = i + j * kLanes;
      const int64_t n = a.hidden_size - at;
      if (n <= 0) break;
      const Vec x_j = load(x + at, n);
      TANDEM_UNROLL
      for (int64_t e = 0; e < kCount; ++e) {
        const Vec w = load_as<kFormat>(a.weight, (expert + e) * a.hidden_size + at, n);
        sums[e][j] = mul_add<Rounding::portable>(w, x_j, sums[e][j]);
      }
    }
  }
  TANDEM_UNROLL
  for (int64_t e = 0; e < kCount; ++e) {
    HWY_ALIGN float sum[kSums];
    TANDEM_UNROLL
    for (int64_t j = 0; j < kSumVectors; ++j) store(sums[e][j], sum + j * kLanes);
    for (int64_t half = kSums / 2; half > 0; half /= 2) {
      for (int64_t i = 0; i < half; ++i) sum[i] += sum[i + half];
    }
    logits[e] = sum[0];
  }
}

template <FloatFormat kFormat>
void logits_of(const RouterArgs& a, int64_t first, int64_t last, float* scores) {
  for (int64_t e = first; e < last; e += kExperts) {
    for (int64_t r = 0; r < a.rows; ++r) {
      const float* x = a.x + r * stride_or(a.x_stride, a.hidden_size);
      float* logits = scores + r * a.num_experts + e;
      if (e + kExperts <= last) {
        dot<kFormat, kExperts>(a, e, x, logits);
      } else {
        for (int64_t i = 0; i < last - e; ++i) dot<kFormat, 1>(a, e + i, x, logits + i);
      }
    }
  }
}

// Logits of experts [first, last) for all rows.
void router_logits(const RouterArgs& a, int64_t first, int64_t last, float* scores) {
  switch (a.weight_format) {
    case FloatFormat::fp32:
      return logits_of<FloatFormat::fp32>(a, first, last, scores);
    case FloatFormat::bf16:
      return logits_of<FloatFormat::bf16>(a, first, last, scores);
    case FloatFormat::fp16:
      return logits_of<FloatFormat::fp16>(a, first, last, scores);
  }
}

// scores = sigmoid(scores)
void router_scores(float* scores, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    store(sigmoid<Rounding::portable>(load(scores + i, count - i)), scores + i, count - i);
  }
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {

HWY_EXPORT(router_logits);
HWY_EXPORT(router_scores);

namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr float kTaken = std::numeric_limits<float>::quiet_NaN();

/// Takes the largest of the values that are left, the first on ties. @return  its index
int64_t take_largest(float* values, int64_t count) {
  int64_t best = -1;
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isnan(values[i]) && (best < 0 || values[i] > values[best])) best = i;
  }
  values[best] = kTaken;
  return best;
}

float two_best(const float* values, int64_t count) {
  float best = kLowest;
  float second = kLowest;
  for (int64_t i = 0; i < count; ++i) {
    if (values[i] > best) {
      second = std::exchange(best, values[i]);
    } else if (values[i] > second) {
      second = values[i];
    }
  }
  return count > 1 ? best + second : best;
}

/// Leaves only the experts of the best groups in `choice`.
void limit_to_groups(const RouterArgs& a, float* choice, float* group_scores) {
  const int64_t size = a.num_experts / a.num_groups;
  for (int64_t g = 0; g < a.num_groups; ++g) group_scores[g] = two_best(choice + g * size, size);
  for (int64_t i = 0; i < a.num_groups_chosen; ++i) take_largest(group_scores, a.num_groups);
  for (int64_t g = 0; g < a.num_groups; ++g) {
    if (!std::isnan(group_scores[g])) std::fill_n(choice + g * size, size, kLowest);
  }
}

void choose(const RouterArgs& a, int64_t row, float* scores, float* choice, float* group_scores) {
  for (int64_t e = 0; e < a.num_experts; ++e) {
    choice[e] = scores[e] + (a.bias != nullptr ? a.bias[e] : 0.0f);
    if (std::isnan(choice[e])) choice[e] = kLowest;
  }
  if (a.num_groups > 1) limit_to_groups(a, choice, group_scores);
  const int64_t count = a.num_experts_chosen;
  int32_t* experts = a.experts + row * count;
  float* weights = a.weights + row * count;
  for (int64_t i = 0; i < count; ++i) experts[i] = static_cast<int32_t>(take_largest(choice, a.num_experts));
  std::sort(experts, experts + count);
  float sum = 0.0f;
  for (int64_t i = 0; i < count; ++i) sum += weights[i] = scores[experts[i]];
  sum += 1e-20f;
  for (int64_t i = 0; i < count; ++i)
    weights[i] = (a.normalize && count > 1 ? weights[i] / sum : weights[i]) * a.scaling;
}

/// The workspace, for each row: scores, what is left to choose from, scores of groups.
struct RouterScratch {
  float* scores;
  float* choice;
  float* group_scores;
  int64_t floats;
};

RouterScratch lay_out(const RouterArgs& a) {
  detail::Scratch scratch(a.workspace);
  RouterScratch arrays{};
  arrays.scores = scratch.take(a.rows * a.num_experts);
  arrays.choice = scratch.take(a.rows * a.num_experts);
  arrays.group_scores = scratch.take(a.rows * a.num_groups);
  arrays.floats = scratch.used();
  return arrays;
}

}  // namespace

int64_t router_workspace(const RouterArgs& args) {
  return lay_out(args).floats;
}

void router(const RouterArgs& a) {
  detail::require(a.num_groups >= 1 && a.num_experts % a.num_groups == 0, "router", "groups must divide the experts");
  detail::require(a.num_groups_chosen >= 1 && a.num_groups_chosen <= a.num_groups, "router", "too many groups chosen");
  const int64_t candidates = a.num_experts / a.num_groups * (a.num_groups > 1 ? a.num_groups_chosen : 1);
  detail::require(a.num_experts_chosen >= 1 && a.num_experts_chosen <= candidates, "router", "too many experts chosen");
  const RouterScratch arrays = lay_out(a);
  constexpr int64_t kExpertBlock = 8;
  detail::parallel_ranges(a.pool, detail::ceil_div(a.num_experts, kExpertBlock),
                          detail::grain_items(a.rows * kExpertBlock * a.hidden_size), [&](int64_t first, int64_t last) {
                            HWY_DYNAMIC_DISPATCH(router_logits)
                            (a, first * kExpertBlock, std::min(last * kExpertBlock, a.num_experts), arrays.scores);
                          });
  detail::parallel_ranges(
      a.pool, a.rows, detail::grain_items(a.num_experts * a.num_experts_chosen), [&](int64_t first, int64_t last) {
        for (int64_t r = first; r < last; ++r) {
          float* scores = arrays.scores + r * a.num_experts;
          HWY_DYNAMIC_DISPATCH(router_scores)(scores, a.num_experts);
          choose(a, r, scores, arrays.choice + r * a.num_experts, arrays.group_scores + r * a.num_groups);
        }
      });
}

}  // namespace tandem
#endif
