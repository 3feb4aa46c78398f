#include "kernels/kda_gate.h"

#include <cmath>

#include "kernels/detail/check.h"
#include "kernels/detail/parallel.h"
#include "kernels/detail/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kda_gate_cpu.cpp"
#include "hwy/foreach_target.h"  // must be the first of these

#include "hwy/contrib/math/math-inl.h"
#include "kernels/detail/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {
using namespace simd::HWY_NAMESPACE;
using detail::stride_or;

template <bool kBounded>
HWY_INLINE Vec log_decay(Vec f, Vec rate, Vec lower_bound) {
  if constexpr (kBounded) return hn::Mul(lower_bound, sigmoid(hn::Mul(rate, f)));
  const Vec softplus = hn::Add(hn::Max(f, zero()), hn::Log1p(Floats(), exp(hn::Neg(hn::Abs(f)))));
  return hn::Mul(hn::Neg(rate), softplus);
}

template <bool kBounded>
void decay_of_head(const KdaGateArgs& a, int64_t row, int64_t head) {
  const int64_t offset = head * a.head_dim;
  const float* f = a.f + row * stride_or(a.f_stride, a.heads * a.head_dim) + offset;
  const float* bias = a.dt_bias + offset;
  float* g = a.g + row * stride_or(a.g_stride, a.heads * a.head_dim) + offset;
  const Vec rate = set(std::exp(a.a_log[head]));
  for (int64_t i = 0; i < a.head_dim; i += kLanes) {
    const int64_t n = a.head_dim - i;
    const Vec biased = hn::Add(load(f + i, n), load(bias + i, n));
    store(log_decay<kBounded>(biased, rate, set(a.lower_bound)), g + i, n);
  }
}

// Heads of all rows in one sequence.
void kda_gate_heads(const KdaGateArgs& a, int64_t first, int64_t last) {
  for (int64_t item = first; item < last; ++item) {
    const int64_t row = item / a.heads;
    const int64_t head = item % a.heads;
    if (a.bounded) {
      decay_of_head<true>(a, row, head);
    } else {
      decay_of_head<false>(a, row, head);
    }
    const float logit = a.beta_logits[row * stride_or(a.beta_logits_stride, a.heads) + head];
    a.beta[row * stride_or(a.beta_stride, a.heads) + head] = hn::GetLane(sigmoid(set(logit)));
  }
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {

HWY_EXPORT(kda_gate_heads);

void kda_gate(const KdaGateArgs& a) {
  detail::parallel_ranges(a.pool, a.rows * a.heads, detail::grain_items(4 * a.head_dim),
                          [&](int64_t first, int64_t last) {
                            HWY_DYNAMIC_DISPATCH(kda_gate_heads)
                            (a, first, last);
                          });
}

}  // namespace tandem
#endif
