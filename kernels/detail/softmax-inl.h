// A softmax over blocks of scores that arrive one after the other.
#if defined(TANDEM_KERNELS_DETAIL_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_KERNELS_DETAIL_SOFTMAX_INL_H_
#undef TANDEM_KERNELS_DETAIL_SOFTMAX_INL_H_
#else
#define TANDEM_KERNELS_DETAIL_SOFTMAX_INL_H_
#endif

#include <cmath>

#include "kernels/detail/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::simd::HWY_NAMESPACE {

/// The largest score so far, and the sum of e^(score - largest).
struct SoftmaxState {
  float largest = -std::numeric_limits<float>::infinity();
  float sum = 0.0f;
};

/// Takes in `count` scores and turns them into weights e^(score - largest), zeros up to the next multiple of kLanes,
/// which the array must have room for.
/// @return  what sums made with the earlier weights are to be multiplied by
HWY_INLINE float take_in(SoftmaxState& state, float* scores, int64_t count) {
  const Vec lowest = set(-std::numeric_limits<float>::infinity());
  Vec largest = lowest;
  for (int64_t i = 0; i < count; i += kLanes) {
    const auto exists = hn::FirstN(Floats(), static_cast<size_t>(std::min(kLanes, count - i)));
    const Vec scores_i = hn::IfThenElse(exists, load(scores + i), lowest);
    largest = hn::Max(largest, scores_i);
    store(scores_i, scores + i);
  }
  const float new_largest = std::max(state.largest, max_lanes(largest));
  Vec sum = zero();
  for (int64_t i = 0; i < count; i += kLanes) {
    const Vec weight = exp(hn::Sub(load(scores + i), set(new_largest)));
    store(weight, scores + i);
    sum = hn::Add(sum, weight);
  }
  const float correction = hn::GetLane(exp(set(state.largest - new_largest)));
  state.largest = new_largest;
  state.sum = state.sum * correction + sum_lanes(sum);
  return correction;
}

HWY_INLINE void scale(float* x, int64_t count, float factor) {
  for (int64_t i = 0; i < count; i += kLanes) store(hn::Mul(load(x + i), set(factor)), x + i);
}

}  // namespace tandem::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
