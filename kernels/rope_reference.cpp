#include <cmath>

#include "kernels/detail/check.h"
#include "kernels/rope.h"

namespace tandem {
using detail::stride_or;

void rope_reference(const RopeArgs& a) {
  const int64_t dim = a.table->rope_dim();
  const int64_t x_head_stride = stride_or(a.x_head_stride, dim);
  const int64_t y_head_stride = stride_or(a.y_head_stride, dim);
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t h = 0; h < a.heads; ++h) {
      const float* x = a.x + r * stride_or(a.x_row_stride, a.heads * x_head_stride) + h * x_head_stride;
      float* y = a.y + r * stride_or(a.y_row_stride, a.heads * y_head_stride) + h * y_head_stride;
      for (int64_t j = 0; j < dim / 2; ++j) {
        const double angle = static_cast<double>(a.positions[r]) * a.table->inverse_frequencies[j];
        const double cosine = std::cos(angle) * a.table->rotation_factor;
        const double sine = std::sin(angle) * a.table->rotation_factor;
        const double even = x[2 * j];
        const double odd = x[2 * j + 1];
        y[2 * j] = static_cast<float>(even * cosine - odd * sine);
        y[2 * j + 1] = static_cast<float>(even * sine + odd * cosine);
      }
    }
  }
}

}  // namespace tandem
