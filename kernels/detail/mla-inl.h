// What decoding and prompts share of MLA: cached rows in fp32, the running softmax, the gate.
#if defined(TANDEM_KERNELS_DETAIL_MLA_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_KERNELS_DETAIL_MLA_INL_H_
#undef TANDEM_KERNELS_DETAIL_MLA_INL_H_
#else
#define TANDEM_KERNELS_DETAIL_MLA_INL_H_
#endif

#include "kernels/detail/check.h"
#include "kernels/detail/softmax-inl.h"
#include "kernels/mla_cache.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::simd::HWY_NAMESPACE {

template <FloatFormat kFormat>
HWY_INLINE void load_cached_rows(const void* cached, int64_t first, int64_t rows, int64_t cached_stride, int64_t width,
                                 float* y, int64_t y_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < width; i += kLanes) {
      store(load_as<kFormat>(cached, (first + r) * cached_stride + i), y + r * y_stride + i);
    }
  }
}

template <FloatFormat kFormat>
HWY_INLINE void load_cache_as(const MlaArgs& a, int64_t first, int64_t rows, float* latents, int64_t latents_stride,
                              float* rope_keys, int64_t rope_keys_stride) {
  load_cached_rows<kFormat>(a.cache.latent, first, rows, detail::stride_or(a.cache.latent_stride, a.latent_dim),
                            a.latent_dim, latents, latents_stride);
  load_cached_rows<kFormat>(a.cache.rope_key, first, rows, detail::stride_or(a.cache.rope_key_stride, a.rope_dim),
                            a.rope_dim, rope_keys, rope_keys_stride);
}

/// Latents and rope keys of `rows` positions from `first` on, in fp32.
HWY_INLINE void load_cache(const MlaArgs& a, int64_t first, int64_t rows, float* latents, int64_t latents_stride,
                           float* rope_keys, int64_t rope_keys_stride) {
  if (a.cache.format == FloatFormat::bf16) {
    load_cache_as<FloatFormat::bf16>(a, first, rows, latents, latents_stride, rope_keys, rope_keys_stride);
  } else {
    load_cache_as<FloatFormat::fp32>(a, first, rows, latents, latents_stride, rope_keys, rope_keys_stride);
  }
}

/// o *= sigmoid(gate) for one head of a row.
HWY_INLINE void apply_gate(const MlaArgs& a, int64_t row, int64_t head, float* o) {
  switch (a.gate_kind) {
    case MlaGate::none:
      return;
    case MlaGate::head_wise: {
      const float* gate = a.gate + row * detail::stride_or(a.gate_stride, a.heads);
      return scale(o, a.value_dim, hn::GetLane(sigmoid(set(gate[head]))));
    }
    case MlaGate::element_wise: {
      const float* gate = a.gate + row * detail::stride_or(a.gate_stride, a.heads * a.value_dim) + head * a.value_dim;
      for (int64_t i = 0; i < a.value_dim; i += kLanes) store(hn::Mul(load(o + i), sigmoid(load(gate + i))), o + i);
      return;
    }
  }
}

}  // namespace tandem::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
