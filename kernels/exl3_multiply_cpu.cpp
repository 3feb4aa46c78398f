// Inputs x decoded tiles, and the rotations on both sides of it.

#include <array>

#include "kernels/detail/exl3_tiles.h"
#include "kernels/float_format.h"

#include "kernels/detail/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/exl3_multiply_cpu.cpp"
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tandem::detail {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::CappedTag<float, kLanes>;
using VecF32 = hn::Vec<F32>;
constexpr int64_t kVectorLanes = static_cast<int64_t>(hn::MaxLanes(F32()));

/// GCC would read a vector from memory anew for every multiply-add that uses it, and run out of load slots.
HWY_INLINE VecF32 in_register(VecF32 v) {
#if HWY_ARCH_X86 && HWY_COMPILER_GCC_ACTUAL && HWY_TARGET != HWY_SCALAR
  asm("" : "+v"(v.raw));
#endif
  return v;
}

/// Sums of kRows rows and kColumns groups, held in registers along the tiles: one load of an input serves kColumns
/// multiply-adds, one load of a weight kRows.
template <int kRows, int kColumns>
HWY_INLINE void multiply_block(const float* inputs, int64_t input_stride, const float* lanes, int64_t count,
                               float* sums, int64_t sum_stride, bool accumulate) {
  const F32 d;
  VecF32 sum[kRows][kColumns];
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(8)
    for (int c = 0; c < kColumns; ++c) {
      sum[r][c] = accumulate ? hn::Load(d, sums + r * sum_stride + c * kLanes) : hn::Zero(d);
    }
  }
  for (int64_t t = 0; t < count; ++t) {
    HWY_UNROLL(8)
    for (int parity = 0; parity < 2; ++parity) {
      VecF32 x[kRows];
      HWY_UNROLL(8)
      for (int r = 0; r < kRows; ++r) {
        x[r] = hn::Load(d, inputs + r * input_stride + t * kInputFloats + parity * kLanes);
      }
      HWY_UNROLL(8)
      for (int c = 0; c < kColumns; ++c) {
        const VecF32 w = in_register(hn::Load(d, lanes + t * kTileFloats + (c * 2 + parity) * kLanes));
        HWY_UNROLL(8)
        for (int r = 0; r < kRows; ++r) sum[r][c] = hn::MulAdd(x[r], w, sum[r][c]);
      }
    }
  }
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(8)
    for (int c = 0; c < kColumns; ++c) hn::Store(sum[r][c], d, sums + r * sum_stride + c * kLanes);
  }
}

// 3 x 8 sums fill 32 vector registers, 3 x 4 fill 16.
constexpr int kColumns = HWY_TARGET <= HWY_AVX3 || HWY_TARGET == HWY_NEON ? 8 : 4;
constexpr int kRows = 3;

template <int kRows>
HWY_INLINE void multiply_rows(const float* inputs, int64_t input_stride, const float* lanes, int64_t count, float* sums,
                              int64_t sum_stride, bool accumulate) {
  for (int64_t lane = 0; lane < kLanes; lane += kVectorLanes) {
    for (int64_t g = 0; g < kGroups; g += kColumns) {
      multiply_block<kRows, kColumns>(inputs + lane, input_stride, lanes + g * 2 * kLanes + lane, count,
                                      sums + g * kLanes + lane, sum_stride, accumulate);
    }
  }
}

/// Seven butterflies over 128 values. In-lane steps of a vector are done by swapping lanes.
void hadamard_128(float* v) {
  const F32 d;
  for (int64_t step = kVectorLanes; step < kBand; step *= 2) {
    for (int64_t i = 0; i < kBand; i += kVectorLanes) {
      if ((i & step) != 0) continue;
      const VecF32 a = hn::Load(d, v + i);
      const VecF32 b = hn::Load(d, v + i + step);
      hn::Store(a + b, d, v + i);
      hn::Store(a - b, d, v + i + step);
    }
  }
  for (int64_t step = 1; step < kVectorLanes; step *= 2) {
    HWY_ALIGN std::array<int32_t, kLanes> partner{};
    HWY_ALIGN std::array<float, kLanes> sign{};
    for (int64_t i = 0; i < kVectorLanes; ++i) {
      partner[i] = static_cast<int32_t>(i ^ step);
      sign[i] = (i & step) != 0 ? -1.0f : 1.0f;
    }
    const auto swap = hn::SetTableIndices(d, partner.data());
    const VecF32 signs = hn::Load(d, sign.data());
    for (int64_t i = 0; i < kBand; i += kVectorLanes) {
      const VecF32 a = hn::Load(d, v + i);
      hn::Store(hn::MulAdd(a, signs, hn::TableLookupLanes(a, swap)), d, v + i);
    }
  }
}

}  // namespace

void multiply_tiles_target(const float* inputs, int64_t input_stride, int64_t rows, const float* lanes, int64_t count,
                           float* sums, int64_t sum_stride, bool accumulate) {
  for (; rows >= kRows; rows -= kRows, inputs += kRows * input_stride, sums += kRows * sum_stride) {
    multiply_rows<kRows>(inputs, input_stride, lanes, count, sums, sum_stride, accumulate);
  }
  if (rows == 2) multiply_rows<2>(inputs, input_stride, lanes, count, sums, sum_stride, accumulate);
  if (rows == 1) multiply_rows<1>(inputs, input_stride, lanes, count, sums, sum_stride, accumulate);
}

void rotate_inputs_target(const float* x, int64_t valid, const uint16_t* suh, float* inputs) {
  HWY_ALIGN std::array<float, kBand> v{};
  for (int64_t i = 0; i < valid; ++i) v[i] = x[i] * fp16_to_float(suh[i]);
  hadamard_128(v.data());
  for (int64_t t = 0; t < kBandTiles; ++t) {
    for (int parity = 0; parity < 2; ++parity) {
      for (int lane = 0; lane < kLanes; ++lane) *inputs++ = v[t * kTileSide + row_of_lane(lane) + parity];
    }
  }
}

void rotate_outputs_target(const float* sums, const uint16_t* svh, const uint16_t* bias, int64_t valid, float* y) {
  HWY_ALIGN std::array<float, kBand> v;
  for (int64_t t = 0; t < kBandTiles; ++t) {
    for (int64_t g = 0; g < kGroups; ++g) {
      const float* s = sums + t * kSumFloats + g * kLanes;
      std::array<float, 4> part;
      for (int i = 0; i < 4; ++i) part[i] = (s[i] + s[i + 8]) + (s[i + 4] + s[i + 12]);
      v[t * kTileSide + g] = part[0] + part[1];
      v[t * kTileSide + g + 8] = part[2] + part[3];
    }
  }
  hadamard_128(v.data());
  for (int64_t i = 0; i < valid; ++i) {
    y[i] = v[i] * (fp16_to_float(svh[i]) * (1.0f / 128.0f)) + (bias != nullptr ? fp16_to_float(bias[i]) : 0.0f);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::detail
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::detail {

HWY_EXPORT(multiply_tiles_target);
HWY_EXPORT(rotate_inputs_target);
HWY_EXPORT(rotate_outputs_target);

void multiply_tiles(const float* inputs, int64_t input_stride, int64_t rows, const float* lanes, int64_t count,
                    float* sums, int64_t sum_stride, bool accumulate) {
  HWY_DYNAMIC_DISPATCH(multiply_tiles_target)
  (inputs, input_stride, rows, lanes, count, sums, sum_stride, accumulate);
}

void rotate_inputs(const float* x, int64_t valid, const uint16_t* suh, float* inputs) {
  HWY_DYNAMIC_DISPATCH(rotate_inputs_target)(x, valid, suh, inputs);
}

void rotate_outputs(const float* sums, const uint16_t* svh, const uint16_t* bias, int64_t valid, float* y) {
  HWY_DYNAMIC_DISPATCH(rotate_outputs_target)(sums, svh, bias, valid, y);
}

}  // namespace tandem::detail
#endif
