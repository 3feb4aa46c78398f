#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/detail/parallel.h"
#include "kernels/mla_decode.h"

namespace tandem::detail {

// How mla_decode cuts its work. Positions only: a row's bits must not depend on anything else.
inline constexpr int64_t kMlaBlock = 64;      // positions of one step of the running softmax
inline constexpr int64_t kMlaSegment = 2048;  // positions with a running softmax of their own
inline constexpr int64_t kMlaHeads = 8;       // heads that share a block while it is in the cache
inline constexpr int64_t kMlaRows = 8;        // rows of one pass over the context

/// Sums over some positions for every (row, head): the running softmax and the latents mixed by its weights.
struct MlaPartial {
  float* mixed = nullptr;    // (kMlaRows, heads, latent_dim)
  float* largest = nullptr;  // (kMlaRows, heads)
  float* sum = nullptr;      // (kMlaRows, heads)
};

/// Up to kMlaRows rows, and the scratch memory cut into arrays.
struct MlaDecodePass {
  MlaArgs args;               // rows, q, gate, o and first_position are this pass's
  int64_t wave = 0;           // segments worked on at the same time
  float* queries = nullptr;   // (kMlaRows, heads, latent_dim + rope_dim) absorbed and scaled
  float* blocks = nullptr;    // (threads, kMlaBlock, latent_dim + rope_dim) cached rows in fp32
  float* scores = nullptr;    // (threads, kMlaHeads, kMlaBlock)
  float* partials = nullptr;  // (wave, partial_floats)
  MlaPartial total;           // of all segments merged so far

  int64_t key_dim() const { return args.latent_dim + args.rope_dim; }
  int64_t head_groups() const { return ceil_div(args.heads, kMlaHeads); }
  int64_t positions() const { return args.first_position + args.rows; }  // that the last row sees
  int64_t segments() const { return ceil_div(positions(), kMlaSegment); }
  int64_t partial_floats() const { return kMlaRows * args.heads * (args.latent_dim + 2); }
  MlaPartial partial(int64_t slot) const {
    float* at = partials + slot * partial_floats();
    const int64_t pairs = kMlaRows * args.heads;
    return {at, at + pairs * args.latent_dim, at + pairs * (args.latent_dim + 1)};
  }
};

}  // namespace tandem::detail
