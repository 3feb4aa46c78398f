#include "kernels/dense_linear.h"

#include <cstddef>
#include <cstring>

#include "kernels/detail/check.h"

namespace tandem {

void dense_linear_reference(const DenseLinearArgs& args) {
  const int64_t element_bytes = float_format_bytes(args.format);
  const auto weight_at = [&](int64_t index) {
    alignas(4) std::byte element[4] = {};
    std::memcpy(element, static_cast<const std::byte*>(args.weight) + index * element_bytes,
                static_cast<size_t>(element_bytes));
    return double{load_float(element, args.format, 0)};
  };
  for (int64_t row = 0; row < args.rows; ++row) {
    const float* x = args.x + row * detail::stride_or(args.x_stride, args.in_features);
    float* y = args.y + row * detail::stride_or(args.y_stride, args.out_features);
    for (int64_t o = 0; o < args.out_features; ++o) {
      double sum = args.bias != nullptr ? args.bias[o] : 0.0;
      for (int64_t i = 0; i < args.in_features; ++i) sum += x[i] * weight_at(o * args.in_features + i);
      y[o] = static_cast<float>(sum);
    }
  }
}

}  // namespace tandem
