#pragma once

#include <cstdint>

namespace tandem {

class ThreadPool;

inline constexpr int64_t kMaxShortConvTaps = 8;

/// Depthwise causal convolution and SiLU over rows of raw projections:
///   y[t][c] = silu( sum_j weight[j][c] * raw[t - (taps - 1) + j][c] ),  rows before x coming from `history`.
/// Strides count floats from row to row; 0 stands for packed rows.
struct ShortConvArgs {
  int64_t rows = 0;
  int64_t channels = 0;
  int64_t taps = 4;          // short_conv_kernel_size, 2..kMaxShortConvTaps
  const float* x = nullptr;  // (rows, channels), raw
  int64_t x_stride = 0;
  const float* weight = nullptr;   // (taps, channels): transposed once on load, see short_conv_weight_by_tap
  const float* history = nullptr;  // (taps - 1, channels) packed, oldest row first; zeros at the start of a sequence
  float* y = nullptr;              // (rows, channels); not x
  int64_t y_stride = 0;
  float* next_history = nullptr;  // (taps - 1, channels) packed; may be history; null leaves it unwritten
  ThreadPool* pool = nullptr;
};

void short_conv(const ShortConvArgs& args);
void short_conv_reference(const ShortConvArgs& args);

/// The history after the first `rows` rows of x alone: what a rollback to that row leaves. rows may be 0.
/// @param history       (taps - 1, channels) before x
/// @param next_history  (taps - 1, channels); may be history
void short_conv_advance(const float* history, const float* x, int64_t x_stride, int64_t rows, int64_t channels,
                        int64_t taps, float* next_history);

/// Packs store the weight as (channels, 1, taps); the operation wants channels contiguous.
void short_conv_weight_by_tap(const float* stored, int64_t channels, int64_t taps, float* by_tap);

}  // namespace tandem
