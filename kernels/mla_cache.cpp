#include "kernels/mla_cache.h"

#include <algorithm>

#include "kernels/detail/check.h"

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

}  // namespace tandem
