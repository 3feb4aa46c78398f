#include "kernels/mla_cache.h"

#include <algorithm>

#include "kernels/detail/check.h"
#include "kernels/detail/mla_args.h"

namespace tandem {

void mla_cache_append(const MlaCacheAppendArgs& a) {
  detail::require(a.format != FloatFormat::fp16, "mla_cache_append", "a cache is fp32 or bf16");
  for (int64_t r = 0; r < a.rows; ++r) {
    const float* x = a.x + r * detail::stride_or(a.x_stride, a.width);
    const int64_t first = r * detail::stride_or(a.y_stride, a.width);
    if (a.format == FloatFormat::fp32) {
      std::copy(x, x + a.width, static_cast<float*>(a.y) + first);
    } else {
      std::transform(x, x + a.width, static_cast<uint16_t*>(a.y) + first, float_to_bf16);
    }
  }
}

namespace detail {

void check_mla(const MlaArgs& a, const char* operation) {
  for (int64_t dim : {a.nope_dim, a.rope_dim, a.latent_dim, a.value_dim}) {
    require(dim > 0 && dim % 16 == 0, operation, "dims must be multiples of 16");
  }
  require(a.first_position >= 0, operation, "positions start at 0");
  require(a.cache.format != FloatFormat::fp16, operation, "a cache is fp32 or bf16");
  require(a.gate_kind == MlaGate::none || a.gate != nullptr, operation, "the gate is missing");
}

MlaArgs rows_of(const MlaArgs& a, int64_t first, int64_t rows) {
  MlaArgs part = a;
  part.rows = rows;
  part.first_position = a.first_position + first;
  part.q = a.q + first * stride_or(a.q_stride, a.heads * (a.nope_dim + a.rope_dim));
  part.o = a.o + first * stride_or(a.o_stride, a.heads * a.value_dim);
  const int64_t gate_width = a.gate_kind == MlaGate::head_wise ? a.heads : a.heads * a.value_dim;
  if (a.gate != nullptr) part.gate = a.gate + first * stride_or(a.gate_stride, gate_width);
  return part;
}

}  // namespace detail

}  // namespace tandem
