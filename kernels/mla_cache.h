#pragma once

#include <cstdint>

#include "kernels/float_format.h"

namespace tandem {

class ThreadPool;

/// What MLA remembers of a sequence in one layer: per position the normalized latent and the rotated key that all heads
/// share. Strides count elements from position to position; 0 stands for packed rows.
struct MlaCacheView {
  FloatFormat format = FloatFormat::fp32;  // fp32 or bf16
  const void* latent = nullptr;            // (positions, latent_dim)
  int64_t latent_stride = 0;
  const void* rope_key = nullptr;  // (positions, rope_dim)
  int64_t rope_key_stride = 0;
};

/// The weights of kv_b_proj: per head nope_dim rows that make keys, then value_dim rows that make values.
struct MlaExpandWeights {
  FloatFormat format = FloatFormat::bf16;
  const void* data = nullptr;  // (heads, nope_dim + value_dim, latent_dim) packed
};

/// The gate that multiplies attention outputs, before its sigmoid.
enum class MlaGate {
  none,
  head_wise,     // (rows, heads)
  element_wise,  // (rows, heads, value_dim)
};

/// Shapes and tensors that decoding and prompts have in common. Row r of a call is the token at position
/// first_position + r; it sees positions 0..first_position + r, which the cache must already hold.
/// Dims are multiples of 16. Strides count floats from row to row; 0 stands for packed rows.
struct MlaArgs {
  int64_t rows = 0;
  int64_t heads = 0;
  int64_t nope_dim = 0;
  int64_t rope_dim = 0;
  int64_t latent_dim = 0;
  int64_t value_dim = 0;
  int64_t first_position = 0;
  float scale = 0.0f;        // (nope_dim + rope_dim)^-0.5 * RopeTable::softmax_factor
  const float* q = nullptr;  // (rows, heads, nope_dim + rope_dim), the last rope_dim already rotated
  int64_t q_stride = 0;
  MlaCacheView cache;
  MlaExpandWeights kv_b;
  MlaGate gate_kind = MlaGate::none;
  const float* gate = nullptr;
  int64_t gate_stride = 0;
  float* o = nullptr;  // (rows, heads, value_dim)
  int64_t o_stride = 0;
  float* workspace = nullptr;
  ThreadPool* pool = nullptr;
};

/// Appends rows to a cache, rounding to its format.
struct MlaCacheAppendArgs {
  int64_t rows = 0;
  int64_t width = 0;         // latent_dim or rope_dim
  const float* x = nullptr;  // (rows, width)
  int64_t x_stride = 0;      // floats; 0: packed
  FloatFormat format = FloatFormat::fp32;
  void* y = nullptr;     // (rows, width): the first new row of the cache
  int64_t y_stride = 0;  // elements; 0: packed
};

void mla_cache_append(const MlaCacheAppendArgs& args);

}  // namespace tandem
