#include "kernels/kda_step.h"

#include "kernels/detail/check.h"
#include "kernels/detail/parallel.h"
#include "kernels/detail/simd_targets.h"

// A column of the state (one value index) never meets another column, so a tile of columns stays in the first-level
// cache while all rows pass over it. Sums over the key axis run lane by lane, key after key: the same bits for any
// number of rows, any tile, any vector length.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kda_step_cpu.cpp"
#include "hwy/foreach_target.h"  // must be the first of these
#include "kernels/detail/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {
using namespace simd::HWY_NAMESPACE;
using detail::stride_or;

// More would not leave 16 registers for the sums, the corrections and what flows by.
inline constexpr int64_t kStepVectors = std::min<int64_t>(4, detail::kStateColumns / kLanes);

/// A tile of the state in memory: `columns` of each key's row.
struct StateTile {
  float* data;
  int64_t stride;
};

/// One row's effect on the tile: S <- Diag(exp g) S; e = v - S^T k; S <- S + k (beta e)^T; o = S^T q unless o is null.
template <int64_t kVectors>
HWY_INLINE void step(StateTile in, StateTile out, int64_t key_dim, const float* decay, const float* k, const float* v,
                     float beta, const float* q, float* o) {
  Vec recalled[kVectors];
  TANDEM_UNROLL
  for (int64_t j = 0; j < kVectors; ++j) recalled[j] = zero();
  for (int64_t d = 0; d < key_dim; ++d) {
    const Vec decay_d = set(decay[d]);
    const Vec k_d = set(k[d]);
    TANDEM_UNROLL
    for (int64_t j = 0; j < kVectors; ++j) {
      const Vec s = hn::Mul(load(in.data + d * in.stride + j * kLanes), decay_d);
      recalled[j] = hn::MulAdd(s, k_d, recalled[j]);
    }
  }
  Vec correction[kVectors];
  Vec read[kVectors];
  TANDEM_UNROLL
  for (int64_t j = 0; j < kVectors; ++j) {
    correction[j] = hn::Mul(set(beta), hn::Sub(load(v + j * kLanes), recalled[j]));
    read[j] = zero();
  }
  for (int64_t d = 0; d < key_dim; ++d) {
    const Vec decay_d = set(decay[d]);
    const Vec k_d = set(k[d]);
    const Vec q_d = set(q != nullptr ? q[d] : 0.0f);
    TANDEM_UNROLL
    for (int64_t j = 0; j < kVectors; ++j) {
      // Decaying again costs less than a store and a load of the decayed tile.
      Vec s = hn::Mul(load(in.data + d * in.stride + j * kLanes), decay_d);
      s = hn::MulAdd(k_d, correction[j], s);
      store(s, out.data + d * out.stride + j * kLanes);
      read[j] = hn::MulAdd(s, q_d, read[j]);
    }
  }
  if (o == nullptr) return;
  TANDEM_UNROLL
  for (int64_t j = 0; j < kVectors; ++j) store(read[j], o + j * kLanes);
}

template <int64_t kVectors>
void step_tile(const KdaStepArgs& a, int64_t head, int64_t column) {
  HWY_ALIGN float scratch[kMaxKdaKeyDim * detail::kStateColumns];
  HWY_ALIGN float decay[kMaxKdaKeyDim];
  const StateTile home{a.state + head * a.key_dim * a.value_dim + column, a.value_dim};
  const StateTile work{scratch, kVectors * kLanes};
  StateTile now = home;

  const auto apply = [&](const KdaRows& rows, int64_t r, StateTile to, const float* q, float* o) HWY_ATTR {
    const float* k = rows.k + r * stride_or(rows.k_stride, a.heads * a.key_dim) + head * a.key_dim;
    const float* g = rows.g + r * stride_or(rows.g_stride, a.heads * a.key_dim) + head * a.key_dim;
    const float* v = rows.v + r * stride_or(rows.v_stride, a.heads * a.value_dim) + head * a.value_dim + column;
    const float beta = rows.beta[r * stride_or(rows.beta_stride, a.heads) + head];
    for (int64_t d = 0; d < a.key_dim; d += kLanes) store(exp(load(g + d, a.key_dim - d)), decay + d, a.key_dim - d);
    step<kVectors>(now, to, a.key_dim, decay, k, v, beta, q, o);
    now = to;
  };

  // The tile moves into scratch memory with its first row, where the next rows find it close together, and moves home
  // with the last row that the state keeps.
  const int64_t kept = a.replay.rows + (a.commit ? a.rows.rows : 0);
  int64_t done = 0;
  const auto destination = [&]() HWY_ATTR { return ++done == kept ? home : work; };
  for (int64_t r = 0; r < a.replay.rows; ++r) apply(a.replay, r, destination(), nullptr, nullptr);
  for (int64_t r = 0; r < a.rows.rows; ++r) {
    const float* q = a.q + r * stride_or(a.q_stride, a.heads * a.key_dim) + head * a.key_dim;
    float* o = a.o + r * stride_or(a.o_stride, a.heads * a.value_dim) + head * a.value_dim + column;
    apply(a.rows, r, destination(), q, o);
  }
}

// Tiles of all heads in one sequence.
void kda_step_tiles(const KdaStepArgs& a, int64_t first, int64_t last) {
  const int64_t tiles = detail::ceil_div(a.value_dim, detail::kStateColumns);
  for (int64_t item = first; item < last; ++item) {
    const int64_t head = item / tiles;
    const int64_t begin = item % tiles * detail::kStateColumns;
    const int64_t end = std::min(begin + detail::kStateColumns, a.value_dim);
    int64_t column = begin;
    for (; column + kStepVectors * kLanes <= end; column += kStepVectors * kLanes)
      step_tile<kStepVectors>(a, head, column);
    for (; column + kLanes <= end; column += kLanes) step_tile<1>(a, head, column);
  }
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {

HWY_EXPORT(kda_step_tiles);

void kda_step(const KdaStepArgs& a) {
  detail::require(a.key_dim >= 1 && a.key_dim <= kMaxKdaKeyDim, "kda_step", "key_dim must be 1..256");
  detail::require(a.value_dim % 16 == 0, "kda_step", "value_dim must be a multiple of 16");
  const int64_t tiles = a.heads * detail::ceil_div(a.value_dim, detail::kStateColumns);
  const int64_t tile_floats = a.key_dim * detail::kStateColumns * (a.replay.rows + a.rows.rows);
  detail::parallel_ranges(a.pool, tiles, detail::grain_items(tile_floats), [&](int64_t first, int64_t last) {
    HWY_DYNAMIC_DISPATCH(kda_step_tiles)(a, first, last);
  });
}

}  // namespace tandem
#endif
