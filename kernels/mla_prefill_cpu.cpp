#include "kernels/mla_prefill.h"

#include "kernels/detail/check.h"
#include "kernels/detail/mla_args.h"
#include "kernels/detail/parallel.h"
#include "kernels/detail/scratch.h"
#include "kernels/detail/simd_targets.h"

// One item of the loop is a tile of rows for one head. It walks over the context in blocks of positions, expands each
// block's latents to keys (transposed, so that scores are products with contiguous rows) and values, and folds them
// into the running softmax of every row of the tile. Wide tiles pay for the expansion.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mla_prefill_cpu.cpp"
#include "hwy/foreach_target.h"  // must be the first of these
#include "kernels/detail/matmul-inl.h"
#include "kernels/detail/mla-inl.h"
#include "kernels/detail/mla_prefill_tile.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {
using namespace simd::HWY_NAMESPACE;
using detail::kPrefillBlock;
using detail::MlaPrefillTile;
using detail::stride_or;

template <FloatFormat kFormat>
HWY_INLINE void expand(const MlaArgs& a, int64_t head, int64_t rows, const MlaPrefillTile& tile) {
  const int64_t weight = head * (a.nope_dim + a.value_dim) * a.latent_dim;
  multiply_transposed<kFormat>(rows, a.nope_dim, a.latent_dim, tile.latents, a.latent_dim, a.kv_b.data, weight,
                               a.latent_dim, tile.keys, 1, kPrefillBlock);
  multiply_transposed<kFormat>(rows, a.value_dim, a.latent_dim, tile.latents, a.latent_dim, a.kv_b.data,
                               weight + a.nope_dim * a.latent_dim, a.latent_dim, tile.values, a.value_dim);
}

/// Keys and values of the positions from `first` on.
HWY_INLINE void load_block(const MlaArgs& a, int64_t head, int64_t first, int64_t rows, const MlaPrefillTile& tile) {
  float* rope_keys = tile.values;  // until the values come
  load_cache(a, first, rows, tile.latents, a.latent_dim, rope_keys, a.rope_dim);
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t i = 0; i < a.rope_dim; ++i) {
      tile.keys[(a.nope_dim + i) * kPrefillBlock + t] = rope_keys[t * a.rope_dim + i];
    }
  }
  switch (a.kv_b.format) {
    case FloatFormat::fp32:
      return expand<FloatFormat::fp32>(a, head, rows, tile);
    case FloatFormat::bf16:
      return expand<FloatFormat::bf16>(a, head, rows, tile);
    case FloatFormat::fp16:
      return expand<FloatFormat::fp16>(a, head, rows, tile);
  }
}

/// Folds a block into the rows of the tile that see it. `a` is the tile's part of the call.
HWY_INLINE void attend(const MlaArgs& a, int64_t head, int64_t first, int64_t positions, const MlaPrefillTile& tile) {
  const int64_t q_dim = a.nope_dim + a.rope_dim;
  const int64_t o_stride = stride_or(a.o_stride, a.heads * a.value_dim);
  float* o = a.o + head * a.value_dim;
  const int64_t begin = std::max<int64_t>(0, first - a.first_position);  // earlier rows come before the block
  // Rows from here on see all of the block, and may be multiplied together; a row before it stops at its own position.
  const int64_t whole =
      positions == kPrefillBlock ? std::clamp(first + kPrefillBlock - 1 - a.first_position, begin, a.rows) : a.rows;
  const int64_t columns = detail::ceil_div(positions, kLanes) * kLanes;
  multiply<Into::overwrite>(a.rows - begin, columns, q_dim, {tile.queries + begin * q_dim, q_dim}, tile.keys, 0,
                            kPrefillBlock, tile.scores + begin * kPrefillBlock, kPrefillBlock);
  for (int64_t r = begin; r < a.rows; ++r) {
    const int64_t visible = std::min(kPrefillBlock, a.first_position + r + 1 - first);
    float* weights = tile.scores + r * kPrefillBlock;
    SoftmaxState state{tile.largest[r], tile.sum[r]};
    scale(o + r * o_stride, a.value_dim, take_in(state, weights, visible));
    tile.largest[r] = state.largest;
    tile.sum[r] = state.sum;
    if (r < whole) {
      multiply<Into::add>(1, a.value_dim, visible, {weights, kPrefillBlock}, tile.values, 0, a.value_dim,
                          o + r * o_stride, o_stride);
    }
  }
  multiply<Into::add>(a.rows - whole, a.value_dim, kPrefillBlock, {tile.scores + whole * kPrefillBlock, kPrefillBlock},
                      tile.values, 0, a.value_dim, o + whole * o_stride, o_stride);
}

void mla_prefill_tile(const MlaArgs& a, int64_t head, const MlaPrefillTile& tile) {
  const int64_t q_dim = a.nope_dim + a.rope_dim;
  const int64_t o_stride = stride_or(a.o_stride, a.heads * a.value_dim);
  for (int64_t r = 0; r < a.rows; ++r) {
    const float* q = a.q + r * stride_or(a.q_stride, a.heads * q_dim) + head * q_dim;
    std::copy(q, q + q_dim, tile.queries + r * q_dim);
    scale(tile.queries + r * q_dim, q_dim, a.scale);
    std::fill_n(a.o + r * o_stride + head * a.value_dim, a.value_dim, 0.0f);
    tile.largest[r] = SoftmaxState().largest;
    tile.sum[r] = SoftmaxState().sum;
  }
  std::fill_n(tile.keys, q_dim * kPrefillBlock, 0.0f);  // the last block's unused columns are multiplied, then dropped
  const int64_t end = a.first_position + a.rows;
  for (int64_t first = 0; first < end; first += kPrefillBlock) {
    const int64_t positions = std::min(kPrefillBlock, end - first);
    load_block(a, head, first, positions, tile);
    attend(a, head, first, positions, tile);
  }
  for (int64_t r = 0; r < a.rows; ++r) {
    float* o = a.o + r * o_stride + head * a.value_dim;
    scale(o, a.value_dim, 1.0f / tile.sum[r]);
    apply_gate(a, r, head, o);
  }
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {

HWY_EXPORT(mla_prefill_tile);

namespace {

using detail::kPrefillBlock;
using detail::kPrefillRows;
using detail::MlaPrefillTile;
using detail::Scratch;

/// Cuts one thread's scratch memory into arrays. @return  the floats it takes
int64_t lay_out(const MlaArgs& a, MlaPrefillTile& tile, float* workspace) {
  Scratch scratch(workspace);
  const int64_t q_dim = a.nope_dim + a.rope_dim;
  tile.queries = scratch.take(kPrefillRows * q_dim);
  tile.scores = scratch.take(kPrefillRows * kPrefillBlock);
  tile.largest = scratch.take(kPrefillRows);
  tile.sum = scratch.take(kPrefillRows);
  tile.latents = scratch.take(kPrefillBlock * a.latent_dim);
  tile.keys = scratch.take(kPrefillBlock * q_dim);
  tile.values = scratch.take(kPrefillBlock * std::max(a.value_dim, a.rope_dim));
  return scratch.used();
}

}  // namespace

int64_t mla_prefill_workspace(const MlaArgs& args) {
  MlaPrefillTile tile;
  return detail::threads_of(args.pool) * lay_out(args, tile, nullptr);
}

void mla_prefill(const MlaArgs& a) {
  detail::check_mla(a, "mla_prefill");
  const int64_t tiles = detail::ceil_div(a.rows, kPrefillRows);
  detail::parallel_tasks(a.pool, a.heads * tiles, [&](int64_t task, int thread) {
    const int64_t first = (tiles - 1 - task % tiles) * kPrefillRows;  // the longest first
    MlaPrefillTile tile;
    const int64_t floats = lay_out(a, tile, nullptr);
    lay_out(a, tile, a.workspace + thread * floats);
    const MlaArgs part = detail::rows_of(a, first, std::min(kPrefillRows, a.rows - first));
    HWY_DYNAMIC_DISPATCH(mla_prefill_tile)(part, task / tiles, tile);
  });
}

}  // namespace tandem
#endif
