#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/detail/check.h"
#include "kernels/kda_chunked.h"

namespace tandem {
namespace {

using detail::stride_or;
using Matrix = std::vector<double>;  // row-major

struct Head {
  Matrix q, k, v, G;  // (rows, key_dim), (rows, key_dim), (rows, value_dim), running sums of g
  std::vector<double> beta;
};

Head load(const KdaChunkedArgs& a, int64_t first, int64_t rows, int64_t head) {
  Head x;
  for (int64_t r = first; r < first + rows; ++r) {
    const float* q = a.q + r * stride_or(a.q_stride, a.heads * a.key_dim) + head * a.key_dim;
    const float* k = a.rows.k + r * stride_or(a.rows.k_stride, a.heads * a.key_dim) + head * a.key_dim;
    const float* g = a.rows.g + r * stride_or(a.rows.g_stride, a.heads * a.key_dim) + head * a.key_dim;
    const float* v = a.rows.v + r * stride_or(a.rows.v_stride, a.heads * a.value_dim) + head * a.value_dim;
    x.q.insert(x.q.end(), q, q + a.key_dim);
    x.k.insert(x.k.end(), k, k + a.key_dim);
    x.v.insert(x.v.end(), v, v + a.value_dim);
    for (int64_t d = 0; d < a.key_dim; ++d) {
      x.G.push_back(g[d] + (r == first ? 0.0 : x.G[x.G.size() - a.key_dim]));
    }
    x.beta.push_back(a.rows.beta[r * stride_or(a.rows.beta_stride, a.heads) + head]);
  }
  return x;
}

// One chunk of one head, from the formulas: U by substitution row by row, then outputs and state.
void chunk(const KdaChunkedArgs& a, int64_t first, int64_t rows, int64_t head, Matrix& S) {
  const int64_t K = a.key_dim;
  const int64_t V = a.value_dim;
  const Head x = load(a, first, rows, head);
  const auto pair = [&](const Matrix& left, int64_t i, int64_t j) {  // sum_d left_i k_j exp(G_i - G_j)
    double sum = 0;
    for (int64_t d = 0; d < K; ++d) sum += left[i * K + d] * x.k[j * K + d] * std::exp(x.G[i * K + d] - x.G[j * K + d]);
    return sum;
  };
  Matrix U(rows * V);
  for (int64_t i = 0; i < rows; ++i) {
    double* u = &U[i * V];
    for (int64_t c = 0; c < V; ++c) u[c] = x.v[i * V + c];
    for (int64_t d = 0; d < K; ++d) {
      const double key = x.k[i * K + d] * std::exp(x.G[i * K + d]);
      for (int64_t c = 0; c < V; ++c) u[c] -= key * S[d * V + c];
    }
    for (int64_t j = 0; j < i; ++j) {
      const double L = pair(x.k, i, j);
      for (int64_t c = 0; c < V; ++c) u[c] -= L * U[j * V + c];
    }
    for (int64_t c = 0; c < V; ++c) u[c] *= x.beta[i];
  }
  for (int64_t i = 0; i < rows; ++i) {
    std::vector<double> o(V);
    for (int64_t d = 0; d < K; ++d) {
      const double query = x.q[i * K + d] * std::exp(x.G[i * K + d]);
      for (int64_t c = 0; c < V; ++c) o[c] += query * S[d * V + c];
    }
    for (int64_t j = 0; j <= i; ++j) {
      const double P = pair(x.q, i, j);
      for (int64_t c = 0; c < V; ++c) o[c] += P * U[j * V + c];
    }
    float* out = a.o + (first + i) * stride_or(a.o_stride, a.heads * V) + head * V;
    for (int64_t c = 0; c < V; ++c) out[c] = static_cast<float>(o[c]);
  }
  const double* last = &x.G[(rows - 1) * K];
  for (int64_t d = 0; d < K; ++d) {
    for (int64_t c = 0; c < V; ++c) {
      double s = std::exp(last[d]) * S[d * V + c];
      for (int64_t j = 0; j < rows; ++j) s += x.k[j * K + d] * std::exp(last[d] - x.G[j * K + d]) * U[j * V + c];
      S[d * V + c] = s;
    }
  }
}

}  // namespace

void kda_chunked_reference(const KdaChunkedArgs& a) {
  const int64_t size = a.key_dim * a.value_dim;
  for (int64_t h = 0; h < a.heads; ++h) {
    Matrix S(a.state + h * size, a.state + (h + 1) * size);
    for (int64_t first = 0; first < a.rows.rows; first += kKdaChunkRows) {
      chunk(a, first, std::min(kKdaChunkRows, a.rows.rows - first), h, S);
    }
    std::transform(S.begin(), S.end(), a.state + h * size, [](double s) { return static_cast<float>(s); });
  }
}

}  // namespace tandem
