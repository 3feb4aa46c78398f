#include <algorithm>
#include <cmath>

#include "kernels/detail/check.h"
#include "kernels/swiglu.h"

namespace tandem {
using detail::stride_or;

void swiglu_reference(const SwigluArgs& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t i = 0; i < a.width; ++i) {
      const double gate = a.gate[r * stride_or(a.gate_stride, a.width) + i];
      double up = a.up[r * stride_or(a.up_stride, a.width) + i];
      double activation = gate / (1.0 + std::exp(-gate));
      if (a.limit > 0) {
        activation = std::min<double>(activation, a.limit);
        up = std::clamp<double>(up, -a.limit, a.limit);
      }
      a.y[r * stride_or(a.y_stride, a.width) + i] = static_cast<float>(activation * up);
    }
  }
}

}  // namespace tandem
