#include <cmath>

#include "kernels/detail/check.h"
#include "kernels/short_conv.h"

namespace tandem {
using detail::stride_or;

void short_conv_reference(const ShortConvArgs& a) {
  const int64_t past = a.taps - 1;
  const int64_t x_stride = stride_or(a.x_stride, a.channels);
  const int64_t y_stride = stride_or(a.y_stride, a.channels);
  for (int64_t t = 0; t < a.rows; ++t) {
    for (int64_t c = 0; c < a.channels; ++c) {
      double sum = 0;
      for (int64_t j = 0; j < a.taps; ++j) {
        const int64_t row = t - past + j;
        const float raw = row < 0 ? a.history[(past + row) * a.channels + c] : a.x[row * x_stride + c];
        sum += double{a.weight[j * a.channels + c]} * raw;
      }
      a.y[t * y_stride + c] = static_cast<float>(sum / (1.0 + std::exp(-sum)));
    }
  }
  if (a.next_history != nullptr) {
    short_conv_advance(a.history, a.x, a.x_stride, a.rows, a.channels, a.taps, a.next_history);
  }
}

void short_conv_advance(const float* history, const float* x, int64_t x_stride, int64_t rows, int64_t channels,
                        int64_t taps, float* next_history) {
  const int64_t past = taps - 1;
  x_stride = stride_or(x_stride, channels);
  // Oldest first: row i of the new history is row i + rows of the old one, which an in-place call has not yet written.
  for (int64_t i = 0; i < past; ++i) {
    const int64_t from = i + rows;
    const float* source = from < past ? history + from * channels : x + (from - past) * x_stride;
    for (int64_t c = 0; c < channels; ++c) next_history[i * channels + c] = source[c];
  }
}

void short_conv_weight_by_tap(const float* stored, int64_t channels, int64_t taps, float* by_tap) {
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t j = 0; j < taps; ++j) by_tap[j * channels + c] = stored[c * taps + j];
  }
}

}  // namespace tandem
