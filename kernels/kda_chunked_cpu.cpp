#include "kernels/kda_chunked.h"

#include "kernels/detail/check.h"
#include "kernels/detail/kda_chunk.h"
#include "kernels/detail/parallel.h"
#include "kernels/detail/simd_targets.h"

// Within a chunk, with G_i the running sum of the log decays g and S the state before the chunk, the corrected values u
// solve a unit lower triangular system (by substitution: a power series would blow up where keys repeat):
//
//   u_i = beta_i (v_i - (k_i e^{G_i}) S - sum_{j<i} L_ij u_j)        L_ij = sum_d k_i k_j e^{G_i - G_j}
//   o_i = (q_i e^{G_i}) S + sum_{j<=i} P_ij u_j                      P_ij = sum_d q_i k_j e^{G_i - G_j}
//   S  <- e^{G_last} S + sum_j (k_j e^{G_last - G_j}) u_j^T
//
// The products want e^{G_i - G_j} split into a factor of i and a factor of j, but e^{-G_j} alone overflows. So the
// chunk is cut into blocks of 16 rows. Across blocks, both factors refer to the borders of their blocks and what lies
// between is a third factor; no exponent is positive. Inside a block the decay from j to i is a running product of e^g,
// row by row: the form with two factors around the block's middle row, made for matrix units, costs more exponentials
// here than it saves products, and holds only while g has a bound. Exponents are sums over one block, or few, never
// differences of long running sums, whose rounding errors would show.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kda_chunked_cpu.cpp"
#include "hwy/foreach_target.h"  // must be the first of these
#include "kernels/detail/matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {
using namespace simd::HWY_NAMESPACE;
using detail::stride_or;

namespace kda_chunked_detail {

inline constexpr int64_t kBlock = kKdaChunkBlockRows;
using Chunk = detail::KdaChunk;

/// What has decayed this far is 0: it would add nothing to sums of O(1), and products of two such factors would be
/// subnormal numbers, whose arithmetic is a hundred times slower.
HWY_INLINE Vec flush(Vec x, float negligible = 1e-18f) {
  return hn::IfThenZeroElse(hn::Lt(hn::Abs(x), set(negligible)), x);
}

HWY_NOINLINE void sum_decays(const Chunk& c) {
  for (int64_t b = 0; b < c.blocks(); ++b) {
    for (int64_t d = 0; d < c.key_dim; d += kLanes) {
      Vec sum = zero();
      for (int64_t i = b * kBlock; i < c.end_of(b); ++i) {
        const Vec g = load(c.g + i * c.g_stride + d);
        sum = hn::Add(sum, g);
        store(exp(g), c.decay + i * c.key_dim + d);
        store(exp(sum), c.lead + i * c.key_dim + d);
      }
      store(sum, c.totals + b * c.key_dim + d);
      sum = zero();
      for (int64_t i = c.end_of(b) - 1; i >= b * kBlock; --i) {
        store(exp(sum), c.tail + i * c.key_dim + d);
        sum = hn::Add(sum, load(c.g + i * c.g_stride + d));
      }
    }
  }
}

/// factor = e^(sum of the totals of blocks [first, last))
HWY_NOINLINE void set_factor(const Chunk& c, int64_t first, int64_t last) {
  for (int64_t d = 0; d < c.key_dim; d += kLanes) {
    Vec sum = zero();
    for (int64_t b = first; b < last; ++b) sum = hn::Add(sum, load(c.totals + b * c.key_dim + d));
    store(exp(sum), c.factor + d);
  }
}

/// scaled = x * weights * factor for the rows of a block.
HWY_NOINLINE void scale_block(const Chunk& c, int64_t block, const float* x, int64_t x_stride, const float* weights) {
  for (int64_t i = block * kBlock; i < c.end_of(block); ++i) {
    for (int64_t d = 0; d < c.key_dim; d += kLanes) {
      const Vec weight = flush(hn::Mul(load(weights + i * c.key_dim + d), load(c.factor + d)));
      store(flush(hn::Mul(load(x + i * x_stride + d), weight)), c.scaled + i * c.key_dim + d);
    }
  }
}

/// L and P between the rows of a block and all rows of earlier blocks.
HWY_NOINLINE void pairs_across_blocks(const Chunk& c, int64_t block) {
  const int64_t first = block * kBlock;
  const int64_t rows = c.end_of(block) - first;
  float* q = c.leading;
  float* k = c.leading + kBlock * c.key_dim;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t d = 0; d < c.key_dim; d += kLanes) {
      const Vec lead = load(c.lead + (first + i) * c.key_dim + d);
      store(flush(hn::Mul(load(c.q + (first + i) * c.q_stride + d), lead)), q + i * c.key_dim + d);
      store(flush(hn::Mul(load(c.k + (first + i) * c.k_stride + d), lead)), k + i * c.key_dim + d);
    }
  }
  for (int64_t b = 0; b < block; ++b) {
    set_factor(c, b + 1, block);
    scale_block(c, b, c.k, c.k_stride, c.tail);
  }
  multiply_transposed(rows, first, c.key_dim, q, c.key_dim, c.scaled, 0, c.key_dim, c.P + first * kKdaChunkRows,
                      kKdaChunkRows);
  multiply_transposed(rows, first, c.key_dim, k, c.key_dim, c.scaled, 0, c.key_dim, c.L + first * kKdaChunkRows,
                      kKdaChunkRows);
}

/// L and P between the rows of a block: row j's key decays step by step on its way to the rows below.
HWY_NOINLINE void pairs_inside_block(const Chunk& c, int64_t block) {
  float* key = c.factor;
  for (int64_t j = block * kBlock; j < c.end_of(block); ++j) {
    for (int64_t i = j; i < c.end_of(block); ++i) {
      Vec with_q = zero();
      Vec with_k = zero();
      for (int64_t d = 0; d < c.key_dim; d += kLanes) {
        const Vec kept =
            i == j ? load(c.k + j * c.k_stride + d) : flush(hn::Mul(load(key + d), load(c.decay + i * c.key_dim + d)));
        store(kept, key + d);
        with_q = hn::MulAdd(kept, load(c.q + i * c.q_stride + d), with_q);
        with_k = hn::MulAdd(kept, load(c.k + i * c.k_stride + d), with_k);
      }
      c.P[i * kKdaChunkRows + j] = sum_lanes(with_q);
      c.L[i * kKdaChunkRows + j] = sum_lanes(with_k);
    }
  }
}

/// scaled = x e^G for all rows.
HWY_NOINLINE void scale_from_start(const Chunk& c, const float* x, int64_t x_stride) {
  for (int64_t b = 0; b < c.blocks(); ++b) {
    set_factor(c, 0, b);
    scale_block(c, b, x, x_stride, c.lead);
  }
}

HWY_NOINLINE void solve(const Chunk& c) {
  const int64_t V = c.value_dim;
  for (int64_t i = 0; i < c.rows; ++i) std::copy(c.v + i * c.v_stride, c.v + i * c.v_stride + V, c.u + i * V);
  scale_from_start(c, c.k, c.k_stride);
  multiply<Into::subtract>(c.rows, V, c.key_dim, {c.scaled, c.key_dim}, c.state, 0, V, c.u, V);
  for (int64_t b = 0; b < c.blocks(); ++b) {
    const int64_t first = b * kBlock;
    const int64_t rows = c.end_of(b) - first;
    multiply<Into::subtract>(rows, V, first, {c.L + first * kKdaChunkRows, kKdaChunkRows}, c.u, 0, V, c.u + first * V,
                             V);
    for (int64_t i = first; i < first + rows; ++i) {
      const Strided inside{c.L + i * kKdaChunkRows + first, kKdaChunkRows};
      multiply<Into::subtract>(1, V, i - first, inside, c.u, first * V, V, c.u + i * V, V);
      const Vec beta = set(c.beta[i * c.beta_stride]);
      for (int64_t j = 0; j < V; j += kLanes) store(hn::Mul(load(c.u + i * V + j), beta), c.u + i * V + j);
    }
  }
}

HWY_NOINLINE void read_outputs(const Chunk& c) {
  const int64_t V = c.value_dim;
  scale_from_start(c, c.q, c.q_stride);
  multiply<Into::overwrite>(c.rows, V, c.key_dim, {c.scaled, c.key_dim}, c.state, 0, V, c.o, c.o_stride);
  for (int64_t b = 0; b < c.blocks(); ++b) {
    const int64_t first = b * kBlock;
    const int64_t rows = c.end_of(b) - first;
    const Strided earlier{c.P + first * kKdaChunkRows, kKdaChunkRows};
    multiply<Into::add>(rows, V, first, earlier, c.u, 0, V, c.o + first * c.o_stride, c.o_stride);
    for (int64_t i = first; i < first + rows; ++i) {  // row by row: what comes later, NaN even, must not show
      const Strided inside{c.P + i * kKdaChunkRows + first, kKdaChunkRows};
      multiply<Into::add>(1, V, i - first + 1, inside, c.u, first * V, V, c.o + i * c.o_stride, c.o_stride);
    }
  }
}

HWY_NOINLINE void update_state(const Chunk& c) {
  const int64_t V = c.value_dim;
  for (int64_t b = 0; b < c.blocks(); ++b) {
    set_factor(c, b + 1, c.blocks());
    scale_block(c, b, c.k, c.k_stride, c.tail);
  }
  set_factor(c, 0, c.blocks());
  for (int64_t d = 0; d < c.key_dim; ++d) {
    const Vec decay = set(c.factor[d]);
    for (int64_t j = 0; j < V; j += kLanes)
      store(flush(hn::Mul(load(c.state + d * V + j), decay), 1e-30f), c.state + d * V + j);
  }
  multiply<Into::add>(c.key_dim, V, c.rows, {c.scaled, 1, c.key_dim}, c.u, 0, V, c.state, V);
}

}  // namespace kda_chunked_detail

void kda_chunked_head(const KdaChunkedArgs& a, int64_t head, float* workspace) {
  using namespace kda_chunked_detail;
  const int64_t K = a.key_dim;
  const int64_t V = a.value_dim;
  Chunk c;
  c.key_dim = K;
  c.value_dim = V;
  c.q_stride = stride_or(a.q_stride, a.heads * K);
  c.k_stride = stride_or(a.rows.k_stride, a.heads * K);
  c.v_stride = stride_or(a.rows.v_stride, a.heads * V);
  c.g_stride = stride_or(a.rows.g_stride, a.heads * K);
  c.beta_stride = stride_or(a.rows.beta_stride, a.heads);
  c.o_stride = stride_or(a.o_stride, a.heads * V);
  c.state = a.state + head * K * V;
  c.lay_out(workspace);
  for (int64_t first = 0; first < a.rows.rows; first += kKdaChunkRows) {
    c.rows = std::min(kKdaChunkRows, a.rows.rows - first);
    c.q = a.q + first * c.q_stride + head * K;
    c.k = a.rows.k + first * c.k_stride + head * K;
    c.v = a.rows.v + first * c.v_stride + head * V;
    c.g = a.rows.g + first * c.g_stride + head * K;
    c.beta = a.rows.beta + first * c.beta_stride + head;
    c.o = a.o + first * c.o_stride + head * V;
    sum_decays(c);
    for (int64_t b = 0; b < c.blocks(); ++b) {
      if (b > 0) pairs_across_blocks(c, b);
      pairs_inside_block(c, b);
    }
    solve(c);
    read_outputs(c);
    update_state(c);
  }
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {

HWY_EXPORT(kda_chunked_head);

namespace {

int64_t floats_a_thread(const KdaChunkedArgs& a) {
  detail::KdaChunk chunk;
  chunk.key_dim = a.key_dim;
  chunk.value_dim = a.value_dim;
  return chunk.lay_out(nullptr);
}

}  // namespace

int64_t kda_chunked_workspace(const KdaChunkedArgs& a) {
  return detail::threads_of(a.pool) * floats_a_thread(a);
}

void kda_chunked(const KdaChunkedArgs& a) {
  detail::require(a.key_dim % 16 == 0 && a.value_dim % 16 == 0, "kda_chunked", "dims must be multiples of 16");
  if (a.rows.rows <= 0) return;
  detail::parallel_tasks(a.pool, a.heads, [&](int64_t head, int thread) {
    HWY_DYNAMIC_DISPATCH(kda_chunked_head)(a, head, a.workspace + thread * floats_a_thread(a));
  });
}

}  // namespace tandem
#endif
