#pragma once

#include <cstdint>

namespace tandem {

/// Hands out pieces of one block of floats, 64-byte aligned. Without a block it only measures, so that the code that
/// lays buffers out is also the code that plans their memory.
class Arena {
 public:
  Arena() = default;
  explicit Arena(float* block) : block_(block) {}

  float* take(int64_t floats) {
    float* piece = block_ ? block_ + used_ : nullptr;
    used_ += (floats + 15) / 16 * 16;
    return piece;
  }
  int64_t used() const { return used_; }

 private:
  float* block_ = nullptr;
  int64_t used_ = 0;
};

}  // namespace tandem
