#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/detail/check.h"
#include "kernels/kda_step.h"

namespace tandem {
namespace {

using detail::stride_or;

// One row: decay, error against the decayed state, update. S is (key_dim, value_dim) of one head.
void update(const KdaStepArgs& a, const KdaRows& rows, int64_t row, int64_t head, std::vector<float>& S) {
  const float* k = rows.k + row * stride_or(rows.k_stride, a.heads * a.key_dim) + head * a.key_dim;
  const float* g = rows.g + row * stride_or(rows.g_stride, a.heads * a.key_dim) + head * a.key_dim;
  const float* v = rows.v + row * stride_or(rows.v_stride, a.heads * a.value_dim) + head * a.value_dim;
  const float beta = rows.beta[row * stride_or(rows.beta_stride, a.heads) + head];
  for (int64_t d = 0; d < a.key_dim; ++d) {
    const float decay = std::exp(g[d]);
    for (int64_t c = 0; c < a.value_dim; ++c) S[d * a.value_dim + c] *= decay;
  }
  for (int64_t c = 0; c < a.value_dim; ++c) {
    float recalled = 0;
    for (int64_t d = 0; d < a.key_dim; ++d) recalled += S[d * a.value_dim + c] * k[d];
    const float correction = beta * (v[c] - recalled);
    for (int64_t d = 0; d < a.key_dim; ++d) S[d * a.value_dim + c] += k[d] * correction;
  }
}

}  // namespace

void kda_step_reference(const KdaStepArgs& a) {
  const int64_t size = a.key_dim * a.value_dim;
  for (int64_t h = 0; h < a.heads; ++h) {
    float* state = a.state + h * size;
    std::vector<float> S(state, state + size);
    for (int64_t r = 0; r < a.replay.rows; ++r) update(a, a.replay, r, h, S);
    if (!a.commit) std::copy(S.begin(), S.end(), state);
    for (int64_t r = 0; r < a.rows.rows; ++r) {
      update(a, a.rows, r, h, S);
      const float* q = a.q + r * stride_or(a.q_stride, a.heads * a.key_dim) + h * a.key_dim;
      float* o = a.o + r * stride_or(a.o_stride, a.heads * a.value_dim) + h * a.value_dim;
      for (int64_t c = 0; c < a.value_dim; ++c) {
        float read = 0;
        for (int64_t d = 0; d < a.key_dim; ++d) read += S[d * a.value_dim + c] * q[d];
        o[c] = read;
      }
    }
    if (a.commit) std::copy(S.begin(), S.end(), state);
  }
}

}  // namespace tandem
