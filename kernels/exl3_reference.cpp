// EXL3 as its format describes it, one value at a time. Slow; every step is to be read against the description.
#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include "kernels/detail/check.h"
#include "kernels/detail/fp16.h"
#include "kernels/exl3.h"
#include "kernels/float_format.h"

namespace tandem {
namespace {

constexpr int kTile = 16;
constexpr int kPositions = kTile * kTile;
constexpr int kHadamard = 128;

/// The 16-bit state at position p of a tile: the 16 stream bits that end where the position's own `bits` fresh ones
/// end. The stream is a ring of 256 * bits bits, most significant bit first within little-endian 32-bit words, so that
/// each pair of 16-bit words is swapped.
uint16_t state_at(const uint16_t* tile, int bits, int position) {
  const int ring_bits = kPositions * bits;
  uint32_t state = 0;
  for (int i = 0; i < 16; ++i) {
    const int bit = ((position + 1) * bits - 16 + i + ring_bits) % ring_bits;
    const uint32_t word = tile[(bit / 16) ^ 1];
    state = state << 1 | ((word >> (15 - bit % 16)) & 1u);
  }
  return static_cast<uint16_t>(state);
}

int row_in_tile(int position) {
  const int t = position / 8;
  const int j = position % 8;
  return 2 * (t % 4) + (j & 1) + 8 * ((j >> 1) & 1);
}

int column_in_tile(int position) {
  const int t = position / 8;
  const int j = position % 8;
  return t / 4 + 8 * ((j >> 2) & 1);
}

void hadamard_128(double* v) {
  std::array<double, kHadamard> sum;
  for (int i = 0; i < kHadamard; ++i) {
    sum[i] = 0.0;
    for (int j = 0; j < kHadamard; ++j) sum[i] += std::popcount(static_cast<unsigned>(i & j)) % 2 == 0 ? v[j] : -v[j];
  }
  for (int i = 0; i < kHadamard; ++i) v[i] = sum[i] / std::sqrt(128.0);
}

void product_reference(const Exl3Product& product) {
  const Exl3Weight& weight = *product.weight;
  const int64_t in = weight.in_features;
  const int64_t out = weight.out_features;
  const int64_t valid_in = product.valid_in != 0 ? product.valid_in : in;
  const int64_t valid_out = product.valid_out != 0 ? product.valid_out : out;
  std::vector<uint16_t> inner(static_cast<size_t>(in * out));
  exl3_decode_reference(weight, inner.data());

  std::vector<double> rotated(static_cast<size_t>(in));
  std::vector<double> sums(static_cast<size_t>(out));
  for (int64_t r = 0; r < product.rows; ++r) {
    const int64_t input_row = product.input_rows != nullptr ? product.input_rows[r] : r;
    const float* x = product.x + input_row * detail::stride_or(product.x_stride, valid_in);
    for (int64_t i = 0; i < in; ++i) rotated[i] = i < valid_in ? double{x[i]} * fp16_to_float(weight.suh[i]) : 0.0;
    for (int64_t i = 0; i < in; i += kHadamard) hadamard_128(&rotated[i]);

    for (int64_t o = 0; o < out; ++o) sums[o] = 0.0;
    for (int64_t i = 0; i < in; ++i) {
      for (int64_t o = 0; o < out; ++o) sums[o] += rotated[i] * fp16_to_float(inner[i * out + o]);
    }

    for (int64_t o = 0; o < out; o += kHadamard) hadamard_128(&sums[o]);
    float* y = product.y + r * detail::stride_or(product.y_stride, valid_out);
    for (int64_t o = 0; o < valid_out; ++o) {
      const double bias = weight.bias != nullptr ? fp16_to_float(weight.bias[o]) : 0.0;
      y[o] = static_cast<float>(sums[o] * fp16_to_float(weight.svh[o]) + bias);
    }
  }
}

}  // namespace

uint16_t exl3_state_value_reference(Codebook codebook, uint16_t state) {
  if (codebook == Codebook::mul1) {
    const uint32_t x = state * 0x83DCD12Du;
    const uint32_t byte_sum = (x & 0xFF) + ((x >> 8) & 0xFF) + ((x >> 16) & 0xFF) + (x >> 24);
    const double scale = fp16_to_float(0x1EEE);
    const double offset = fp16_to_float(0xC931);
    return detail::float_to_fp16(static_cast<float>((1024.0 + byte_sum) * scale + offset));  // 22 bits: exact in fp32
  }
  uint32_t x = codebook == Codebook::mcg ? state * 0xCBAC1FEDu : state * 89226354u + 64248484u;
  x = (x & 0x8FFF8FFFu) ^ 0x3B603B60u;
  const float low = fp16_to_float(static_cast<uint16_t>(x & 0xFFFF));
  const float high = fp16_to_float(static_cast<uint16_t>(x >> 16));
  return detail::float_to_fp16(low + high);
}

void exl3_decode_reference(const Exl3Weight& weight, uint16_t* inner) {
  const int64_t tile_rows = weight.in_features / kTile;
  const int64_t tile_columns = weight.out_features / kTile;
  const int64_t tile_words = int64_t{kTile} * weight.bits;
  for (int64_t kt = 0; kt < tile_rows; ++kt) {
    for (int64_t nt = 0; nt < tile_columns; ++nt) {
      const uint16_t* tile = weight.trellis + (kt * tile_columns + nt) * tile_words;
      for (int p = 0; p < kPositions; ++p) {
        const int64_t row = kt * kTile + row_in_tile(p);
        const int64_t column = nt * kTile + column_in_tile(p);
        inner[row * weight.out_features + column] =
            exl3_state_value_reference(weight.codebook, state_at(tile, weight.bits, p));
      }
    }
  }
}

void exl3_linear_reference(const Exl3LinearArgs& args) {
  for (const Exl3Product& product : args.products) product_reference(product);
}

}  // namespace tandem
