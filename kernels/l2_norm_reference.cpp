#include <cmath>

#include "kernels/detail/check.h"
#include "kernels/l2_norm.h"

namespace tandem {
using detail::stride_or;

void l2_norm_reference(const L2NormArgs& a) {
  const int64_t row_width = a.heads * a.width;
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t h = 0; h < a.heads; ++h) {
      const float* x = a.x + r * stride_or(a.x_stride, row_width) + h * a.width;
      float* y = a.y + r * stride_or(a.y_stride, row_width) + h * a.width;
      double squares = 0;
      for (int64_t i = 0; i < a.width; ++i) squares += double{x[i]} * x[i];
      const double factor = a.scale / std::sqrt(squares + a.eps);
      for (int64_t i = 0; i < a.width; ++i) y[i] = static_cast<float>(x[i] * factor);
    }
  }
}

}  // namespace tandem
