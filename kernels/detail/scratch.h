#pragma once

#include <cstdint>

namespace tandem::detail {

/// Cuts a workspace into arrays; without memory it only counts, so that size and layout cannot differ.
class Scratch {
 public:
  explicit Scratch(float* memory) : memory_(memory) {}

  float* take(int64_t floats) {
    float* array = memory_ != nullptr ? memory_ + used_ : nullptr;
    used_ += floats;
    return array;
  }

  int64_t used() const { return used_; }

 private:
  float* memory_;
  int64_t used_ = 0;
};

}  // namespace tandem::detail
