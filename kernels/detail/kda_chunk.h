#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/detail/parallel.h"
#include "kernels/detail/scratch.h"
#include "kernels/kda_chunked.h"

namespace tandem::detail {

/// One chunk of one head: where its rows lie, and the scratch memory cut into arrays.
struct KdaChunk {
  int64_t rows = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  const float* q = nullptr;
  int64_t q_stride = 0;
  const float* k = nullptr;
  int64_t k_stride = 0;
  const float* v = nullptr;
  int64_t v_stride = 0;
  const float* g = nullptr;
  int64_t g_stride = 0;
  const float* beta = nullptr;
  int64_t beta_stride = 0;
  float* o = nullptr;
  int64_t o_stride = 0;
  float* state = nullptr;  // (key_dim, value_dim)

  float* decay = nullptr;    // (rows, key_dim)  e^g
  float* lead = nullptr;     // (rows, key_dim)  e^(g's sum from the block's start up to the row)
  float* tail = nullptr;     // (rows, key_dim)  e^(g's sum from after the row to the block's end)
  float* scaled = nullptr;   // (rows, key_dim)  q or k times what the next product needs
  float* leading = nullptr;  // (2, 16, key_dim) a block's q and k times lead
  float* totals = nullptr;   // (blocks, key_dim) sums of g
  float* factor = nullptr;   // (key_dim)
  float* L = nullptr;        // (rows, kKdaChunkRows)
  float* P = nullptr;        // (rows, kKdaChunkRows)
  float* u = nullptr;        // (rows, value_dim)

  int64_t blocks() const { return ceil_div(rows, kKdaChunkBlockRows); }
  int64_t end_of(int64_t block) const { return std::min(rows, (block + 1) * kKdaChunkBlockRows); }

  /// Cuts a thread's workspace into the arrays. @return  the floats they take
  int64_t lay_out(float* workspace) {
    Scratch scratch(workspace);
    decay = scratch.take(kKdaChunkRows * key_dim);
    lead = scratch.take(kKdaChunkRows * key_dim);
    tail = scratch.take(kKdaChunkRows * key_dim);
    scaled = scratch.take(kKdaChunkRows * key_dim);
    leading = scratch.take(2 * kKdaChunkBlockRows * key_dim);
    totals = scratch.take(kKdaChunkRows / kKdaChunkBlockRows * key_dim);
    factor = scratch.take(key_dim);
    L = scratch.take(kKdaChunkRows * kKdaChunkRows);
    P = scratch.take(kKdaChunkRows * kKdaChunkRows);
    u = scratch.take(kKdaChunkRows * value_dim);
    return scratch.used();
  }
};

}  // namespace tandem::detail
