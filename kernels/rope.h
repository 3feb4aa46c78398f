#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace tandem {

class ThreadPool;

/// YaRN's part of a config's rope_scaling; names as there.
struct YarnScaling {
  double factor = 1.0;
  double original_max_position_embeddings = 0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  std::optional<double> attention_factor;
  std::optional<double> mscale;
  std::optional<double> mscale_all_dim;
};

struct RopeConfig {
  int64_t rope_dim = 64;  // qk_rope_head_dim, even
  double theta = 10000.0;
  std::optional<YarnScaling> yarn;
};

/// What a rotary embedding needs at run time, in fp64.
struct RopeTable {
  std::vector<double> inverse_frequencies;  // (rope_dim / 2), radians a position
  double rotation_factor = 1.0;             // on cos and sin
  double softmax_factor = 1.0;              // on the scale of the attention scores

  int64_t rope_dim() const { return 2 * static_cast<int64_t>(inverse_frequencies.size()); }
};

/// @throws Error  kind `pack`, for a config that describes no rotary embedding (odd dim, theta <= 1, factor <= 0 ...)
/// Source: YaRN, arXiv:2309.00071
RopeTable build_rope_table(const RopeConfig& config);

/// Turns each pair (2j, 2j+1) of every head by positions[row] * inverse_frequencies[j]. Angles are fp64: at position
/// 10^6 an fp32 product would be off by 0.03 rad. Strides count floats; 0 stands for packed heads and rows.
struct RopeArgs {
  int64_t rows = 0;
  int64_t heads = 0;
  const RopeTable* table = nullptr;
  const int64_t* positions = nullptr;  // (rows)
  const float* x = nullptr;            // (rows, heads, rope_dim)
  int64_t x_row_stride = 0;
  int64_t x_head_stride = 0;
  float* y = nullptr;  // (rows, heads, rope_dim); may be x
  int64_t y_row_stride = 0;
  int64_t y_head_stride = 0;
  ThreadPool* pool = nullptr;
};

void rope(const RopeArgs& args);
void rope_reference(const RopeArgs& args);

}  // namespace tandem
