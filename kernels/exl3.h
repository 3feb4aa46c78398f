#pragma once

#include <cstdint>
#include <span>

#include "runtime/common/codebook.h"

// EXL3 weights: 1 to 8 bits a weight, coded as a trellis. `in` and `out` are in_features and out_features.
//
//   y = ((x * suh) H) What H * svh + bias        x (rows, in), y (rows, out)
//
// What (in, out) is the decoded inner matrix, exact fp16 values; H is the 128-point orthonormal Hadamard transform
// applied to every aligned run of 128 features.
//
// Every operation here is row-invariant: the result of a row is the same, bit by bit, whatever other rows, weights or
// threads take part in the call.

namespace tandem {

class ThreadPool;

/// One quantized linear. Owns nothing; the pointers may point straight into a mapped file, where only 2-byte alignment
/// is certain. fp16 values are raw bits. The loader has checked shapes and sizes: nothing here looks at them again.
struct Exl3Weight {
  const uint16_t* trellis = nullptr;  // (in / 16, out / 16, 16 * bits)
  const uint16_t* suh = nullptr;      // (in) fp16
  const uint16_t* svh = nullptr;      // (out) fp16
  const uint16_t* bias = nullptr;     // (out) fp16, or null
  int64_t in_features = 0;            // multiple of 128, padding included
  int64_t out_features = 0;           // multiple of 128, padding included
  int bits = 0;                       // 1..8
  Codebook codebook = Codebook::mul1;
};

/// The inner matrix What.
/// @param inner  (in, out) fp16 bits, row-major
void exl3_decode(const Exl3Weight& weight, uint16_t* inner, ThreadPool* pool);
void exl3_decode_reference(const Exl3Weight& weight, uint16_t* inner);

/// One product: `rows` rows of x through one weight.
///
/// Row r reads x + input_row(r) * x_stride and writes y + r * y_stride. With `input_rows` null input_row(r) = r;
/// otherwise input_rows[r], so that an expert takes its tokens from the shared activations without a copy.
/// x and y hold in_features / out_features values a row, padding included: padded inputs must be zeros.
/// `valid_in` / `valid_out`, when not 0, say how many of them exist: inputs beyond are taken as zeros, outputs beyond
/// are not written.
struct Exl3Product {
  const Exl3Weight* weight = nullptr;
  const float* x = nullptr;
  int64_t x_stride = 0;                 // floats from row to row; 0: packed, valid_in or in_features
  const int32_t* input_rows = nullptr;  // (rows) or null
  int64_t rows = 0;                     // 0 is fine: nothing happens
  float* y = nullptr;
  int64_t y_stride = 0;  // floats from row to row; 0: packed, valid_out or out_features
  int64_t valid_in = 0;
  int64_t valid_out = 0;
};

/// Any number of products in one go: one linear; q, k, v, f, g of the same input; gate and up of all chosen experts.
/// They run as one parallel loop over (product, 128 output features), so small ones keep all threads busy together.
/// Outputs must not overlap each other or any input.
struct Exl3LinearArgs {
  std::span<const Exl3Product> products;
  void* workspace = nullptr;    // 64-byte aligned, not shared with a call that runs at the same time
  int64_t workspace_bytes = 0;  // >= exl3_workspace_bytes(largest in_features of the call, the pool's threads)
  ThreadPool* pool = nullptr;   // null: everything runs on the calling thread
};

/// Scratch memory that serves any call whose weights have at most `max_in_features` inputs, whatever the number of
/// rows and products: longer calls are cut into passes of at most kExl3RowsPerPass rows.
int64_t exl3_workspace_bytes(int64_t max_in_features, int threads);
inline constexpr int64_t kExl3RowsPerPass = 64;

void exl3_linear(const Exl3LinearArgs& args);

/// The same straight from the format's description: scalar, fp64 sums, allocates. For tests.
void exl3_linear_reference(const Exl3LinearArgs& args);

/// The codebook's value of each of the 65,536 states, fp16 bits.
uint16_t exl3_state_value_reference(Codebook codebook, uint16_t state);

}  // namespace tandem
