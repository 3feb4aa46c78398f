#pragma once

#include <cstdint>

namespace tandem {

class ThreadPool;

/// KDA's per-channel log decay and per-head step size:
///   bounded    g = lower_bound * sigmoid(exp(a_log[head]) * (f + dt_bias))      in (lower_bound, 0)
///   otherwise  g = -exp(a_log[head]) * softplus(f + dt_bias)
///   beta = sigmoid(beta_logits)
/// Strides count floats from row to row; 0 stands for packed rows.
struct KdaGateArgs {
  int64_t rows = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  bool bounded = true;             // kda_safe_gate
  float lower_bound = -5.0f;       // kda_lower_bound
  const float* a_log = nullptr;    // (heads)
  const float* dt_bias = nullptr;  // (heads, head_dim)
  const float* f = nullptr;        // (rows, heads, head_dim)
  int64_t f_stride = 0;
  const float* beta_logits = nullptr;  // (rows, heads)
  int64_t beta_logits_stride = 0;
  float* g = nullptr;  // (rows, heads, head_dim); may be f
  int64_t g_stride = 0;
  float* beta = nullptr;  // (rows, heads); may be beta_logits
  int64_t beta_stride = 0;
  ThreadPool* pool = nullptr;
};

void kda_gate(const KdaGateArgs& args);
void kda_gate_reference(const KdaGateArgs& args);

}  // namespace tandem
