#include <cmath>

#include "kernels/detail/check.h"
#include "kernels/kda_gate.h"

namespace tandem {
using detail::stride_or;

void kda_gate_reference(const KdaGateArgs& a) {
  const int64_t width = a.heads * a.head_dim;
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t h = 0; h < a.heads; ++h) {
      const double rate = std::exp(double{a.a_log[h]});
      for (int64_t d = 0; d < a.head_dim; ++d) {
        const int64_t i = h * a.head_dim + d;
        const double f = double{a.f[r * stride_or(a.f_stride, width) + i]} + a.dt_bias[i];
        const double g = a.bounded ? a.lower_bound / (1.0 + std::exp(-rate * f))
                                   : -rate * (std::fmax(f, 0.0) + std::log1p(std::exp(-std::fabs(f))));
        a.g[r * stride_or(a.g_stride, width) + i] = static_cast<float>(g);
      }
      const double logit = a.beta_logits[r * stride_or(a.beta_logits_stride, a.heads) + h];
      a.beta[r * stride_or(a.beta_stride, a.heads) + h] = static_cast<float>(1.0 / (1.0 + std::exp(-logit)));
    }
  }
}

}  // namespace tandem
