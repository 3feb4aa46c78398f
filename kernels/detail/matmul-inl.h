// Small matrix products for tiles that lie in the cache. An element of C is summed over k in one fixed order, whatever
// tile it falls into: its bits do not depend on the number of rows or columns of the product.
#if defined(TANDEM_KERNELS_DETAIL_MATMUL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_KERNELS_DETAIL_MATMUL_INL_H_
#undef TANDEM_KERNELS_DETAIL_MATMUL_INL_H_
#else
#define TANDEM_KERNELS_DETAIL_MATMUL_INL_H_
#endif

#include "kernels/detail/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::simd::HWY_NAMESPACE {

/// A matrix whose elements are `row_stride` and `column_stride` floats apart; a transposed one swaps the two.
struct Strided {
  const float* data;
  int64_t row_stride;
  int64_t column_stride = 1;

  const float& at(int64_t row, int64_t column) const { return data[row * row_stride + column * column_stride]; }
};

/// What becomes of the old values of C.
enum class Into { overwrite, add, subtract };

// With 16 registers 4 x 2 vectors of sums leave room for the factors; with 32, 4 x 4.
inline constexpr int64_t kTileRows = 4;
inline constexpr int64_t kTileVectors = HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64 ? 4 : 2;

template <int64_t kRows, int64_t kVectors, Into kInto, FloatFormat kFormat>
HWY_INLINE void multiply_tile(int64_t depth, Strided a, const void* b, int64_t b_first, int64_t b_stride, float* c,
                              int64_t c_stride) {
  Vec sums[kRows][kVectors];
  TANDEM_UNROLL
  for (int64_t i = 0; i < kRows; ++i) {
    TANDEM_UNROLL
    for (int64_t j = 0; j < kVectors; ++j) {
      sums[i][j] = kInto == Into::overwrite ? zero() : load(c + i * c_stride + j * kLanes);
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    Vec row[kVectors];
    TANDEM_UNROLL
    for (int64_t j = 0; j < kVectors; ++j) row[j] = load_as<kFormat>(b, b_first + k * b_stride + j * kLanes);
    TANDEM_UNROLL
    for (int64_t i = 0; i < kRows; ++i) {
      const Vec factor = set(a.at(i, k));
      TANDEM_UNROLL
      for (int64_t j = 0; j < kVectors; ++j) {
        sums[i][j] = kInto == Into::subtract ? hn::NegMulAdd(factor, row[j], sums[i][j])
                                             : hn::MulAdd(factor, row[j], sums[i][j]);
      }
    }
  }
  TANDEM_UNROLL
  for (int64_t i = 0; i < kRows; ++i) {
    TANDEM_UNROLL
    for (int64_t j = 0; j < kVectors; ++j) store(sums[i][j], c + i * c_stride + j * kLanes);
  }
}

template <int64_t kRows, Into kInto, FloatFormat kFormat>
HWY_INLINE void multiply_rows(int64_t columns, int64_t depth, Strided a, const void* b, int64_t b_first,
                              int64_t b_stride, float* c, int64_t c_stride) {
  // A single row has registers to spare, and needs the longer run to keep the multipliers busy.
  constexpr int64_t kVectors = kRows == 1 ? 8 : kTileVectors;
  int64_t j = 0;
  for (; j + kVectors * kLanes <= columns; j += kVectors * kLanes) {
    multiply_tile<kRows, kVectors, kInto, kFormat>(depth, a, b, b_first + j, b_stride, c + j, c_stride);
  }
  for (; j < columns; j += kLanes) {
    multiply_tile<kRows, 1, kInto, kFormat>(depth, a, b, b_first + j, b_stride, c + j, c_stride);
  }
}

/// C (+)= A B: A (rows, depth), B (depth, columns) with contiguous rows from element `b_first` on, C (rows, columns).
/// `columns` is a multiple of kLanes.
template <Into kInto, FloatFormat kFormat = FloatFormat::fp32>
HWY_INLINE void multiply(int64_t rows, int64_t columns, int64_t depth, Strided a, const void* b, int64_t b_first,
                         int64_t b_stride, float* c, int64_t c_stride) {
  int64_t i = 0;
  for (; i + kTileRows <= rows; i += kTileRows) {
    const Strided rows_of_a{&a.at(i, 0), a.row_stride, a.column_stride};
    multiply_rows<kTileRows, kInto, kFormat>(columns, depth, rows_of_a, b, b_first, b_stride, c + i * c_stride,
                                             c_stride);
  }
  for (; i < rows; ++i) {
    const Strided row_of_a{&a.at(i, 0), a.row_stride, a.column_stride};
    multiply_rows<1, kInto, kFormat>(columns, depth, row_of_a, b, b_first, b_stride, c + i * c_stride, c_stride);
  }
}

template <int64_t kRows, int64_t kColumns, FloatFormat kFormat>
HWY_INLINE void dot_tile(int64_t depth, const float* a, int64_t a_stride, const void* b, int64_t b_first,
                         int64_t b_stride, float* c, int64_t c_row_stride, int64_t c_column_stride) {
  Vec sums[kRows][kColumns];
  TANDEM_UNROLL
  for (int64_t i = 0; i < kRows; ++i) {
    TANDEM_UNROLL
    for (int64_t j = 0; j < kColumns; ++j) sums[i][j] = zero();
  }
  for (int64_t k = 0; k < depth; k += kLanes) {
    Vec column[kColumns];
    TANDEM_UNROLL
    for (int64_t j = 0; j < kColumns; ++j) column[j] = load_as<kFormat>(b, b_first + j * b_stride + k);
    TANDEM_UNROLL
    for (int64_t i = 0; i < kRows; ++i) {
      const Vec row = load(a + i * a_stride + k);
      TANDEM_UNROLL
      for (int64_t j = 0; j < kColumns; ++j) sums[i][j] = hn::MulAdd(row, column[j], sums[i][j]);
    }
  }
  TANDEM_UNROLL
  for (int64_t i = 0; i < kRows; ++i) {
    TANDEM_UNROLL
    for (int64_t j = 0; j < kColumns; ++j) c[i * c_row_stride + j * c_column_stride] = sum_lanes(sums[i][j]);
  }
}

/// C = A B^T: A (rows, depth), B (columns, depth) with contiguous rows from element `b_first` on; C's elements are
/// `c_row_stride` and `c_column_stride` floats apart. `depth` is a multiple of kLanes.
template <FloatFormat kFormat = FloatFormat::fp32>
HWY_INLINE void multiply_transposed(int64_t rows, int64_t columns, int64_t depth, const float* a, int64_t a_stride,
                                    const void* b, int64_t b_first, int64_t b_stride, float* c, int64_t c_row_stride,
                                    int64_t c_column_stride = 1) {
  constexpr int64_t kColumns = kTileVectors;
  int64_t j = 0;
  for (; j + kColumns <= columns; j += kColumns) {
    int64_t i = 0;
    for (; i + kTileRows <= rows; i += kTileRows) {
      dot_tile<kTileRows, kColumns, kFormat>(depth, a + i * a_stride, a_stride, b, b_first + j * b_stride, b_stride,
                                             c + i * c_row_stride + j * c_column_stride, c_row_stride, c_column_stride);
    }
    for (; i < rows; ++i) {
      dot_tile<1, kColumns, kFormat>(depth, a + i * a_stride, a_stride, b, b_first + j * b_stride, b_stride,
                                     c + i * c_row_stride + j * c_column_stride, c_row_stride, c_column_stride);
    }
  }
  for (; j < columns; ++j) {
    for (int64_t i = 0; i < rows; ++i) {
      dot_tile<1, 1, kFormat>(depth, a + i * a_stride, a_stride, b, b_first + j * b_stride, b_stride,
                              c + i * c_row_stride + j * c_column_stride, c_row_stride, c_column_stride);
    }
  }
}

}  // namespace tandem::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
