#include "kernels/mla_decode.h"

#include "kernels/detail/check.h"
#include "kernels/detail/mla_args.h"
#include "kernels/detail/mla_decode_pass.h"
#include "kernels/detail/parallel.h"
#include "kernels/detail/scratch.h"
#include "kernels/detail/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mla_decode_cpu.cpp"
#include "hwy/foreach_target.h"  // must be the first of these
#include "kernels/detail/matmul-inl.h"
#include "kernels/detail/mla-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {
using namespace simd::HWY_NAMESPACE;
using detail::MlaDecodePass;
using detail::MlaPartial;
using detail::stride_or;

template <FloatFormat kFormat>
void absorb(const MlaDecodePass& pass, int64_t head) {
  const MlaArgs& a = pass.args;
  const int64_t q_dim = a.nope_dim + a.rope_dim;
  const int64_t q_stride = stride_or(a.q_stride, a.heads * q_dim);
  const float* q = a.q + head * q_dim;
  float* queries = pass.queries + head * pass.key_dim();
  const int64_t weight = head * (a.nope_dim + a.value_dim) * a.latent_dim;
  multiply<Into::overwrite, kFormat>(a.rows, a.latent_dim, a.nope_dim, {q, q_stride}, a.kv_b.data, weight, a.latent_dim,
                                     queries, a.heads * pass.key_dim());
  for (int64_t r = 0; r < a.rows; ++r) {
    float* query = queries + r * a.heads * pass.key_dim();
    const float* rope = q + r * q_stride + a.nope_dim;
    std::copy(rope, rope + a.rope_dim, query + a.latent_dim);
    scale(query, pass.key_dim(), a.scale);
  }
}

void mla_decode_absorb(const MlaDecodePass& pass, int64_t head) {
  switch (pass.args.kv_b.format) {
    case FloatFormat::fp32:
      return absorb<FloatFormat::fp32>(pass, head);
    case FloatFormat::bf16:
      return absorb<FloatFormat::bf16>(pass, head);
    case FloatFormat::fp16:
      return absorb<FloatFormat::fp16>(pass, head);
  }
}

// One segment for one group of heads, all rows.
void mla_decode_attend(const MlaDecodePass& pass, int64_t segment, int64_t slot, int64_t group, int64_t thread) {
  const MlaArgs& a = pass.args;
  const int64_t key_dim = pass.key_dim();
  const int64_t head = group * detail::kMlaHeads;
  const int64_t heads = std::min(detail::kMlaHeads, a.heads - head);
  const MlaPartial out = pass.partial(slot);
  float* keys = pass.blocks + thread * detail::kMlaBlock * key_dim;
  float* scores = pass.scores + thread * detail::kMlaHeads * detail::kMlaBlock;
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t pair = r * a.heads + head; pair < r * a.heads + head + heads; ++pair) {
      std::fill_n(out.mixed + pair * a.latent_dim, a.latent_dim, 0.0f);
      out.largest[pair] = SoftmaxState().largest;
      out.sum[pair] = SoftmaxState().sum;
    }
  }
  const int64_t end = std::min((segment + 1) * detail::kMlaSegment, pass.positions());
  for (int64_t first = segment * detail::kMlaSegment; first < end; first += detail::kMlaBlock) {
    load_cache(a, first, std::min(detail::kMlaBlock, end - first), keys, key_dim, keys + a.latent_dim, key_dim);
    for (int64_t r = 0; r < a.rows; ++r) {
      const int64_t visible = std::min(detail::kMlaBlock, a.first_position + r + 1 - first);
      if (visible <= 0) continue;
      const int64_t pair = r * a.heads + head;
      multiply_transposed(heads, visible, key_dim, pass.queries + pair * key_dim, key_dim, keys, 0, key_dim, scores,
                          detail::kMlaBlock);
      for (int64_t h = 0; h < heads; ++h) {
        SoftmaxState state{out.largest[pair + h], out.sum[pair + h]};
        const float correction = take_in(state, scores + h * detail::kMlaBlock, visible);
        scale(out.mixed + (pair + h) * a.latent_dim, a.latent_dim, correction);
        out.largest[pair + h] = state.largest;
        out.sum[pair + h] = state.sum;
      }
      multiply<Into::add>(heads, a.latent_dim, visible, {scores, detail::kMlaBlock}, keys, 0, key_dim,
                          out.mixed + pair * a.latent_dim, a.latent_dim);
    }
  }
}

// Folds a wave's segments, in order, into the total of a head.
void mla_decode_merge(const MlaDecodePass& pass, int64_t first_segment, int64_t segments, int64_t head) {
  const MlaArgs& a = pass.args;
  for (int64_t r = 0; r < a.rows; ++r) {
    const int64_t pair = r * a.heads + head;
    float* total = pass.total.mixed + pair * a.latent_dim;
    for (int64_t slot = 0; slot < segments; ++slot) {
      const int64_t segment = first_segment + slot;
      if (segment * detail::kMlaSegment > a.first_position + r) break;
      const MlaPartial part = pass.partial(slot);
      const float* mixed = part.mixed + pair * a.latent_dim;
      if (segment == 0) {
        std::copy(mixed, mixed + a.latent_dim, total);
        pass.total.largest[pair] = part.largest[pair];
        pass.total.sum[pair] = part.sum[pair];
        continue;
      }
      const float largest = std::max(pass.total.largest[pair], part.largest[pair]);
      const float keep = hn::GetLane(exp(set(pass.total.largest[pair] - largest)));
      const float take = hn::GetLane(exp(set(part.largest[pair] - largest)));
      for (int64_t i = 0; i < a.latent_dim; i += kLanes) {
        const Vec kept = hn::Mul(load(total + i), set(keep));
        store(hn::MulAdd(load(mixed + i), set(take), kept), total + i);
      }
      pass.total.largest[pair] = largest;
      pass.total.sum[pair] = pass.total.sum[pair] * keep + part.sum[pair] * take;
    }
  }
}

template <FloatFormat kFormat>
void output(const MlaDecodePass& pass, int64_t head) {
  const MlaArgs& a = pass.args;
  float* mixed = pass.total.mixed + head * a.latent_dim;
  for (int64_t r = 0; r < a.rows; ++r) {
    scale(mixed + r * a.heads * a.latent_dim, a.latent_dim, 1.0f / pass.total.sum[r * a.heads + head]);
  }
  const int64_t weight = (head * (a.nope_dim + a.value_dim) + a.nope_dim) * a.latent_dim;
  const int64_t o_stride = stride_or(a.o_stride, a.heads * a.value_dim);
  float* o = a.o + head * a.value_dim;
  multiply_transposed<kFormat>(a.rows, a.value_dim, a.latent_dim, mixed, a.heads * a.latent_dim, a.kv_b.data, weight,
                               a.latent_dim, o, o_stride);
  for (int64_t r = 0; r < a.rows; ++r) apply_gate(a, r, head, o + r * o_stride);
}

void mla_decode_output(const MlaDecodePass& pass, int64_t head) {
  switch (pass.args.kv_b.format) {
    case FloatFormat::fp32:
      return output<FloatFormat::fp32>(pass, head);
    case FloatFormat::bf16:
      return output<FloatFormat::bf16>(pass, head);
    case FloatFormat::fp16:
      return output<FloatFormat::fp16>(pass, head);
  }
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {

HWY_EXPORT(mla_decode_absorb);
HWY_EXPORT(mla_decode_attend);
HWY_EXPORT(mla_decode_merge);
HWY_EXPORT(mla_decode_output);

namespace {

using detail::MlaDecodePass;
using detail::Scratch;

// A few items for each thread, so that they finish together.
int64_t wave_of(const MlaArgs& a) {
  return std::clamp<int64_t>(
      detail::ceil_div(4 * detail::threads_of(a.pool), detail::ceil_div(a.heads, detail::kMlaHeads)), 1, 16);
}

/// Cuts `workspace` into the arrays of a pass. @return  the floats it takes
int64_t lay_out(MlaDecodePass& pass, float* workspace) {
  Scratch scratch(workspace);
  const int64_t threads = detail::threads_of(pass.args.pool);
  pass.wave = wave_of(pass.args);
  pass.queries = scratch.take(detail::kMlaRows * pass.args.heads * pass.key_dim());
  pass.blocks = scratch.take(threads * detail::kMlaBlock * pass.key_dim());
  pass.scores = scratch.take(threads * detail::kMlaHeads * detail::kMlaBlock);
  pass.partials = scratch.take(pass.wave * pass.partial_floats());
  const int64_t pairs = detail::kMlaRows * pass.args.heads;
  pass.total.mixed = scratch.take(pairs * pass.args.latent_dim);
  pass.total.largest = scratch.take(pairs);
  pass.total.sum = scratch.take(pairs);
  return scratch.used();
}

void run(const MlaDecodePass& pass) {
  const MlaArgs& a = pass.args;
  detail::parallel_tasks(a.pool, a.heads, [&](int64_t head, int) {
    HWY_DYNAMIC_DISPATCH(mla_decode_absorb)(pass, head);
  });
  for (int64_t first = 0; first < pass.segments(); first += pass.wave) {
    const int64_t segments = std::min(pass.wave, pass.segments() - first);
    detail::parallel_tasks(a.pool, segments * pass.head_groups(), [&](int64_t task, int thread) {
      const int64_t slot = task / pass.head_groups();
      HWY_DYNAMIC_DISPATCH(mla_decode_attend)(pass, first + slot, slot, task % pass.head_groups(), thread);
    });
    detail::parallel_tasks(a.pool, a.heads, [&](int64_t head, int) {
      HWY_DYNAMIC_DISPATCH(mla_decode_merge)(pass, first, segments, head);
    });
  }
  detail::parallel_tasks(a.pool, a.heads, [&](int64_t head, int) {
    HWY_DYNAMIC_DISPATCH(mla_decode_output)(pass, head);
  });
}

}  // namespace

int64_t mla_decode_workspace(const MlaArgs& args) {
  MlaDecodePass pass{.args = args};
  return lay_out(pass, nullptr);
}

void mla_decode(const MlaArgs& a) {
  detail::check_mla(a, "mla_decode");
  MlaDecodePass pass{.args = a};
  lay_out(pass, a.workspace);
  for (int64_t first = 0; first < a.rows; first += detail::kMlaRows) {
    pass.args = detail::rows_of(a, first, std::min(detail::kMlaRows, a.rows - first));
    run(pass);
  }
}

}  // namespace tandem
#endif
