#pragma once

#include <cstdint>

#include "kernels/float_format.h"

namespace tandem {

class ThreadPool;

/// y = x W^T (+ bias): a linear as checkpoints store it, W (out_features, in_features) row-major.
///
/// Sums in fp32, in an order that depends on in_features alone: the result of a row is the same, bit by bit, whatever
/// other rows or threads take part. Any in_features and out_features >= 1.
struct DenseLinearArgs {
  const void* weight = nullptr;  // (out, in) of `format`; may be unaligned, as in a mapped file
  FloatFormat format = FloatFormat::fp32;
  int64_t in_features = 0;
  int64_t out_features = 0;
  const float* bias = nullptr;  // (out) or null
  const float* x = nullptr;     // (rows, in)
  int64_t x_stride = 0;         // floats from row to row; 0: packed
  int64_t rows = 0;
  float* y = nullptr;    // (rows, out)
  int64_t y_stride = 0;  // floats from row to row; 0: packed
  ThreadPool* pool = nullptr;
};

void dense_linear(const DenseLinearArgs& args);
void dense_linear_reference(const DenseLinearArgs& args);  ///< fp64 sums, scalar; ignores the pool

}  // namespace tandem
