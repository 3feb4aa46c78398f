// y = x W^T: both operands run along in_features, so a block of products is vectors of x times vectors of W, each sum
// kept in one vector whose lanes are added up at the end. That order is the same for one row and for many.
//
// One row: bound by reading W; values are converted as they come. Many rows: bound by multiply-adds; a block of W is
// converted once into the first-level cache and meets up to kChunkRows rows there.

#include "kernels/dense_linear.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "kernels/detail/check.h"
#include "kernels/detail/parallel.h"
#include "kernels/detail/simd_targets.h"
#include "kernels/float_format.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dense_linear_cpu.cpp"
// clang-format off
#include "hwy/foreach_target.h"
// clang-format on
#include "hwy/highway.h"
#include "kernels/detail/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::simd::HWY_NAMESPACE {
namespace {

constexpr int kBlockOutputs = 8;
// Sums of 3 rows: 3 x 8 fill 32 vector registers, 3 x 4 fill 16.
constexpr int kBlockRows = 3;
constexpr int kBlockColumns = HWY_TARGET <= HWY_AVX3 || HWY_TARGET == HWY_NEON ? 8 : 4;
constexpr int64_t kBlockInputs = 512;  // 16 KiB of converted weights
constexpr int64_t kChunkRows = 32;     // 16 KiB of sums

/// Element `index` of an array of `kFormat` at any address, and those after it; zeros from `count` on.
template <FloatFormat kFormat>
HWY_INLINE Vec load_weights(const std::byte* row, int64_t index, int64_t count) {
  constexpr int64_t kBytes = float_format_bytes(kFormat);
  if (kLanes == 1 || HWY_LIKELY(count >= kLanes)) return load_as<kFormat>(row + index * kBytes, 0);
  HWY_ALIGN std::byte buffer[kLanes * kBytes] = {};
  std::memcpy(buffer, row + index * kBytes, static_cast<size_t>(count * kBytes));
  return load_as<kFormat>(buffer, 0);
}

/// sums[r][o] += x[r] . weights[o] over `count` inputs.
/// @param weights  rows of kFormat, `weight_stride` bytes apart
/// @param sums     (kRows, kOutputs) vectors, rows `kBlockOutputs` vectors apart
template <FloatFormat kFormat, int kRows, int kOutputs>
HWY_INLINE void multiply_block(const float* x, int64_t x_stride, const std::byte* weights, int64_t weight_stride,
                               int64_t count, float* sums) {
  Vec sum[kRows][kOutputs];
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(8)
    for (int o = 0; o < kOutputs; ++o) sum[r][o] = load(sums + (r * kBlockOutputs + o) * kLanes);
  }
  for (int64_t i = 0; i < count; i += kLanes) {
    Vec v[kRows];
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) v[r] = load(x + r * x_stride + i, count - i);
    HWY_UNROLL(8)
    for (int o = 0; o < kOutputs; ++o) {
      const Vec w = load_weights<kFormat>(weights + o * weight_stride, i, count - i);
      HWY_UNROLL(8)
      for (int r = 0; r < kRows; ++r) sum[r][o] = hn::MulAdd(v[r], w, sum[r][o]);
    }
  }
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(8)
    for (int o = 0; o < kOutputs; ++o) store(sum[r][o], sums + (r * kBlockOutputs + o) * kLanes);
  }
}

template <FloatFormat kFormat, int kOutputs>
void multiply_rows(const float* x, int64_t x_stride, int64_t rows, const std::byte* weights, int64_t weight_stride,
                   int64_t count, float* sums) {
  constexpr int kColumns = std::min(kOutputs, kBlockColumns);
  int64_t r = 0;
  for (; r + kBlockRows <= rows; r += kBlockRows) {
    for (int o = 0; o < kOutputs; o += kColumns) {
      multiply_block<kFormat, kBlockRows, kColumns>(x + r * x_stride, x_stride, weights + o * weight_stride,
                                                    weight_stride, count, sums + (r * kBlockOutputs + o) * kLanes);
    }
  }
  for (; r < rows; ++r) {
    multiply_block<kFormat, 1, kOutputs>(x + r * x_stride, x_stride, weights, weight_stride, count,
                                         sums + r * kBlockOutputs * kLanes);
  }
}

/// Up to kChunkRows rows times kOutputs outputs from `first_output` on.
template <FloatFormat kFormat, int kOutputs>
void multiply_chunk(const DenseLinearArgs& a, int64_t first_row, int64_t rows, int64_t first_output) {
  HWY_ALIGN float sums[kChunkRows * kBlockOutputs * kLanes];
  std::fill_n(sums, rows * kBlockOutputs * kLanes, 0.0f);
  constexpr int64_t kBytes = float_format_bytes(kFormat);
  const int64_t x_stride = tandem::detail::stride_or(a.x_stride, a.in_features);
  const int64_t y_stride = tandem::detail::stride_or(a.y_stride, a.out_features);
  const float* x = a.x + first_row * x_stride;
  const auto* weights = static_cast<const std::byte*>(a.weight) + first_output * a.in_features * kBytes;

  if (kFormat == FloatFormat::fp32 || rows <= kBlockRows) {
    multiply_rows<kFormat, kOutputs>(x, x_stride, rows, weights, a.in_features * kBytes, a.in_features, sums);
  } else {
    HWY_ALIGN float converted[kBlockOutputs * kBlockInputs];
    for (int64_t i = 0; i < a.in_features; i += kBlockInputs) {
      const int64_t count = std::min(kBlockInputs, a.in_features - i);
      for (int64_t o = 0; o < kOutputs; ++o) {
        for (int64_t j = 0; j < count; j += kLanes) {
          const Vec w = load_weights<kFormat>(weights + (o * a.in_features + i) * kBytes, j, count - j);
          store(w, converted + o * kBlockInputs + j);
        }
      }
      multiply_rows<FloatFormat::fp32, kOutputs>(x + i, x_stride, rows, reinterpret_cast<const std::byte*>(converted),
                                                 kBlockInputs * int64_t{sizeof(float)}, count, sums);
    }
  }

  for (int64_t r = 0; r < rows; ++r) {
    float* y = a.y + (first_row + r) * y_stride + first_output;
    for (int64_t o = 0; o < kOutputs; ++o) {
      const float sum = sum_lanes(load(sums + (r * kBlockOutputs + o) * kLanes));
      y[o] = a.bias != nullptr ? sum + a.bias[first_output + o] : sum;
    }
  }
}

template <FloatFormat kFormat>
void multiply_outputs(const DenseLinearArgs& a, int64_t first, int64_t last) {
  for (int64_t row = 0; row < a.rows; row += kChunkRows) {
    const int64_t rows = std::min(kChunkRows, a.rows - row);
    int64_t o = first;
    for (; o + kBlockOutputs <= last; o += kBlockOutputs) multiply_chunk<kFormat, kBlockOutputs>(a, row, rows, o);
    for (; o < last; ++o) multiply_chunk<kFormat, 1>(a, row, rows, o);
  }
}

}  // namespace

void dense_linear_outputs(const DenseLinearArgs& a, int64_t first, int64_t last) {
  switch (a.format) {
    case FloatFormat::fp32:
      return multiply_outputs<FloatFormat::fp32>(a, first, last);
    case FloatFormat::fp16:
      return multiply_outputs<FloatFormat::fp16>(a, first, last);
    case FloatFormat::bf16:
      return multiply_outputs<FloatFormat::bf16>(a, first, last);
  }
}

}  // namespace tandem::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {
namespace simd {

HWY_EXPORT(dense_linear_outputs);

void dense_linear_dispatch(const DenseLinearArgs& args, int64_t first, int64_t last) {
  HWY_DYNAMIC_DISPATCH(dense_linear_outputs)(args, first, last);
}

}  // namespace simd

void dense_linear(const DenseLinearArgs& args) {
  constexpr int64_t kTaskOutputs = 16;  // two blocks
  detail::parallel_tasks(args.pool, detail::ceil_div(args.out_features, kTaskOutputs), [&](int64_t task, int) {
    const int64_t first = task * kTaskOutputs;
    simd::dense_linear_dispatch(args, first, std::min(first + kTaskOutputs, args.out_features));
  });
}

}  // namespace tandem
#endif
