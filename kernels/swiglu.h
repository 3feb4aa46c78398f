#pragma once

#include <cstdint>

namespace tandem {

class ThreadPool;

/// y = silu(gate) * up; with limit > 0: y = min(silu(gate), limit) * clamp(up, -limit, limit).
/// Strides count floats from row to row; 0 stands for packed rows.
struct SwigluArgs {
  int64_t rows = 0;
  int64_t width = 0;
  float limit = 0.0f;           // 0: none
  const float* gate = nullptr;  // (rows, width)
  int64_t gate_stride = 0;
  const float* up = nullptr;  // (rows, width)
  int64_t up_stride = 0;
  float* y = nullptr;  // (rows, width); may be gate or up
  int64_t y_stride = 0;
  ThreadPool* pool = nullptr;
};

void swiglu(const SwigluArgs& args);
void swiglu_reference(const SwigluArgs& args);

}  // namespace tandem
