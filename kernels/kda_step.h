#pragma once

#include <cstdint>

namespace tandem {

class ThreadPool;

inline constexpr int64_t kMaxKdaKeyDim = 256;

/// What one block of rows feeds into a KDA state. Rows may be strided; heads lie packed inside a row.
/// Strides count floats from row to row; 0 stands for packed rows.
struct KdaRows {
  int64_t rows = 0;
  const float* k = nullptr;  // (rows, heads, key_dim), normalized
  int64_t k_stride = 0;
  const float* v = nullptr;  // (rows, heads, value_dim)
  int64_t v_stride = 0;
  const float* g = nullptr;  // (rows, heads, key_dim), log decay, <= 0
  int64_t g_stride = 0;
  const float* beta = nullptr;  // (rows, heads)
  int64_t beta_stride = 0;
};

/// The gated delta rule, token by token. For each head and row, in this order:
///   S <- Diag(exp g) S;   e = v - S^T k;   S <- S + k (beta e)^T;   o = S^T q
///
/// First the `replay` rows are applied to the state, without outputs; then `rows`, with outputs. With commit = false
/// the state keeps only what `replay` did to it: that is how drafts are verified. The next pass hands the rows that
/// were kept back as `replay`, which leaves the bits that serial decoding would have left, at one read and one write of
/// the state a pass.
///
/// Bits of outputs and state do not depend on how rows are grouped into calls, nor on the pool.
struct KdaStepArgs {
  int64_t heads = 0;
  int64_t key_dim = 0;       // up to kMaxKdaKeyDim
  int64_t value_dim = 0;     // a multiple of 16
  KdaRows replay;            // replay.rows may be 0
  KdaRows rows;              // rows.rows may be 0: replay alone
  const float* q = nullptr;  // (rows, heads, key_dim), normalized and scaled
  int64_t q_stride = 0;
  float* o = nullptr;  // (rows, heads, value_dim); may be rows.v
  int64_t o_stride = 0;
  float* state = nullptr;  // (heads, key_dim, value_dim) packed
  bool commit = true;
  ThreadPool* pool = nullptr;
};

void kda_step(const KdaStepArgs& args);
void kda_step_reference(const KdaStepArgs& args);

}  // namespace tandem
