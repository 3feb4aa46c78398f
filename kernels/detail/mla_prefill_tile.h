#pragma once

#include <cstdint>

namespace tandem::detail {

inline constexpr int64_t kPrefillBlock = 64;  // positions of one step of the running softmax
inline constexpr int64_t kPrefillRows = 512;  // rows that share an expanded block

/// One thread's scratch memory.
struct MlaPrefillTile {
  float* queries = nullptr;  // (kPrefillRows, nope_dim + rope_dim) scaled
  float* scores = nullptr;   // (kPrefillRows, kPrefillBlock)
  float* largest = nullptr;  // (kPrefillRows)
  float* sum = nullptr;      // (kPrefillRows)
  float* latents = nullptr;  // (kPrefillBlock, latent_dim)
  float* keys = nullptr;     // (nope_dim + rope_dim, kPrefillBlock)
  float* values = nullptr;   // (kPrefillBlock, value_dim)
};

}  // namespace tandem::detail
