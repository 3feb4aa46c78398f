#pragma once

#include <cstdint>

#include "kernels/kda_step.h"

namespace tandem {

class ThreadPool;

/// Rows that are worked on together. A prompt that is cut at multiples of this between calls gives the same bits.
inline constexpr int64_t kKdaChunkRows = 64;
/// Rows of a block inside a chunk.
inline constexpr int64_t kKdaChunkBlockRows = 16;

/// The same map as kda_step with matrix products, for prompts: outputs of all rows, and the state after them.
/// Differs from kda_step in the last bits (below 1e-6 relative), so prompts use it and verification does not.
/// Holds for any log decays <= 0: no exponent is ever positive.
struct KdaChunkedArgs {
  int64_t heads = 0;
  int64_t key_dim = 0;       // a multiple of 16
  int64_t value_dim = 0;     // a multiple of 16
  KdaRows rows;              // any number of rows
  const float* q = nullptr;  // (rows, heads, key_dim), normalized and scaled
  int64_t q_stride = 0;
  float* o = nullptr;  // (rows, heads, value_dim); may be rows.v
  int64_t o_stride = 0;
  float* state = nullptr;      // (heads, key_dim, value_dim) packed, read and written
  float* workspace = nullptr;  // kda_chunked_workspace(args) floats
  ThreadPool* pool = nullptr;
};

/// Floats of scratch memory; a function of the dimensions and the pool.
int64_t kda_chunked_workspace(const KdaChunkedArgs& args);
void kda_chunked(const KdaChunkedArgs& args);
/// Needs no workspace: fp64, each pair of rows by itself.
void kda_chunked_reference(const KdaChunkedArgs& args);

}  // namespace tandem
