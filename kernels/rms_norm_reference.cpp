#include <cmath>

#include "kernels/detail/check.h"
#include "kernels/rms_norm.h"

namespace tandem {
using detail::stride_or;

void rms_norm_reference(const RmsNormArgs& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    const float* x = a.x + r * stride_or(a.x_stride, a.width);
    float* y = a.y + r * stride_or(a.y_stride, a.width);
    if (a.delta != nullptr) {
      const float* delta = a.delta + r * stride_or(a.delta_stride, a.width);
      float* sum = a.sum + r * stride_or(a.sum_stride, a.width);
      for (int64_t i = 0; i < a.width; ++i) sum[i] = x[i] + delta[i];
      x = sum;
    }
    double squares = 0;
    for (int64_t i = 0; i < a.width; ++i) squares += double{x[i]} * x[i];
    const double factor = 1.0 / std::sqrt(squares / static_cast<double>(a.width) + a.eps);
    for (int64_t i = 0; i < a.width; ++i) y[i] = static_cast<float>(x[i] * factor * a.weight[i]);
  }
}

void gated_rms_norm_reference(const GatedRmsNormArgs& a) {
  const int64_t row_width = a.heads * a.width;
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t h = 0; h < a.heads; ++h) {
      const float* x = a.x + r * stride_or(a.x_stride, row_width) + h * a.width;
      const float* gate = a.gate + r * stride_or(a.gate_stride, row_width) + h * a.width;
      float* y = a.y + r * stride_or(a.y_stride, row_width) + h * a.width;
      double squares = 0;
      for (int64_t i = 0; i < a.width; ++i) squares += double{x[i]} * x[i];
      const double factor = 1.0 / std::sqrt(squares / static_cast<double>(a.width) + a.eps);
      for (int64_t i = 0; i < a.width; ++i) {
        y[i] = static_cast<float>(x[i] * factor * a.weight[i] / (1.0 + std::exp(-double{gate[i]})));
      }
    }
  }
}

}  // namespace tandem
