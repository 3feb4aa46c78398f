#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/detail/check.h"
#include "kernels/mla_decode.h"
#include "kernels/mla_prefill.h"

namespace tandem {
namespace {

using detail::stride_or;

double gate_of(const MlaArgs& a, int64_t row, int64_t head, int64_t column) {
  double logit = 0;
  switch (a.gate_kind) {
    case MlaGate::none:
      return 1.0;
    case MlaGate::head_wise:
      logit = a.gate[row * stride_or(a.gate_stride, a.heads) + head];
      break;
    case MlaGate::element_wise:
      logit = a.gate[row * stride_or(a.gate_stride, a.heads * a.value_dim) + head * a.value_dim + column];
      break;
  }
  return 1.0 / (1.0 + std::exp(-logit));
}

double latent(const MlaArgs& a, int64_t position, int64_t i) {
  const int64_t stride = stride_or(a.cache.latent_stride, a.latent_dim);
  return load_float(a.cache.latent, a.cache.format, position * stride + i);
}

double rope_key(const MlaArgs& a, int64_t position, int64_t i) {
  const int64_t stride = stride_or(a.cache.rope_key_stride, a.rope_dim);
  return load_float(a.cache.rope_key, a.cache.format, position * stride + i);
}

// Row `out` of the head's block in kv_b: nope_dim key rows, then value_dim value rows.
double expand_weight(const MlaArgs& a, int64_t head, int64_t out, int64_t i) {
  const int64_t row = head * (a.nope_dim + a.value_dim) + out;
  return load_float(a.kv_b.data, a.kv_b.format, row * a.latent_dim + i);
}

double rope_score(const MlaArgs& a, const float* q, int64_t position) {
  double score = 0;
  for (int64_t i = 0; i < a.rope_dim; ++i) score += q[a.nope_dim + i] * rope_key(a, position, i);
  return score;
}

void softmax(std::vector<double>& scores) {
  const double largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double& s : scores) sum += s = std::exp(s - largest);
  for (double& s : scores) s /= sum;
}

}  // namespace

void mla_decode_reference(const MlaArgs& a) {
  const int64_t q_dim = a.nope_dim + a.rope_dim;
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t h = 0; h < a.heads; ++h) {
      const float* q = a.q + r * stride_or(a.q_stride, a.heads * q_dim) + h * q_dim;
      std::vector<double> absorbed(a.latent_dim);
      for (int64_t n = 0; n < a.nope_dim; ++n) {
        for (int64_t i = 0; i < a.latent_dim; ++i) absorbed[i] += q[n] * expand_weight(a, h, n, i);
      }
      std::vector<double> p(a.first_position + r + 1);
      for (size_t t = 0; t < p.size(); ++t) {
        double score = rope_score(a, q, t);
        for (int64_t i = 0; i < a.latent_dim; ++i) score += absorbed[i] * latent(a, t, i);
        p[t] = score * a.scale;
      }
      softmax(p);
      std::vector<double> mixed(a.latent_dim);
      for (size_t t = 0; t < p.size(); ++t) {
        for (int64_t i = 0; i < a.latent_dim; ++i) mixed[i] += p[t] * latent(a, t, i);
      }
      float* o = a.o + r * stride_or(a.o_stride, a.heads * a.value_dim) + h * a.value_dim;
      for (int64_t c = 0; c < a.value_dim; ++c) {
        double sum = 0;
        for (int64_t i = 0; i < a.latent_dim; ++i) sum += expand_weight(a, h, a.nope_dim + c, i) * mixed[i];
        o[c] = static_cast<float>(sum * gate_of(a, r, h, c));
      }
    }
  }
}

void mla_prefill_reference(const MlaArgs& a) {
  const int64_t q_dim = a.nope_dim + a.rope_dim;
  const int64_t kv_dim = a.nope_dim + a.value_dim;
  const int64_t positions = a.rows > 0 ? a.first_position + a.rows : 0;
  for (int64_t h = 0; h < a.heads; ++h) {
    std::vector<double> kv(positions * kv_dim);  // per position k_nope, then v
    for (int64_t t = 0; t < positions; ++t) {
      for (int64_t n = 0; n < kv_dim; ++n) {
        for (int64_t i = 0; i < a.latent_dim; ++i) kv[t * kv_dim + n] += expand_weight(a, h, n, i) * latent(a, t, i);
      }
    }
    for (int64_t r = 0; r < a.rows; ++r) {
      const float* q = a.q + r * stride_or(a.q_stride, a.heads * q_dim) + h * q_dim;
      std::vector<double> p(a.first_position + r + 1);
      for (size_t t = 0; t < p.size(); ++t) {
        double score = rope_score(a, q, t);
        for (int64_t n = 0; n < a.nope_dim; ++n) score += q[n] * kv[t * kv_dim + n];
        p[t] = score * a.scale;
      }
      softmax(p);
      float* o = a.o + r * stride_or(a.o_stride, a.heads * a.value_dim) + h * a.value_dim;
      for (int64_t c = 0; c < a.value_dim; ++c) {
        double sum = 0;
        for (size_t t = 0; t < p.size(); ++t) sum += p[t] * kv[t * kv_dim + a.nope_dim + c];
        o[c] = static_cast<float>(sum * gate_of(a, r, h, c));
      }
    }
  }
}

}  // namespace tandem
