#pragma once

#include <cstdint>

namespace tandem {

class ThreadPool;

/// y = x / sqrt(sum(x^2) + eps) * scale per head: KDA's queries (scale = head_dim^-0.5) and keys (scale = 1).
/// Heads lie packed inside a row; strides count floats from row to row; 0 stands for packed rows.
struct L2NormArgs {
  int64_t rows = 0;
  int64_t heads = 0;
  int64_t width = 0;  // of one head
  float eps = 1e-6f;  // the model's own constant, whatever rms_norm_eps is
  float scale = 1.0f;
  const float* x = nullptr;  // (rows, heads, width)
  int64_t x_stride = 0;
  float* y = nullptr;  // (rows, heads, width); may be x
  int64_t y_stride = 0;
  ThreadPool* pool = nullptr;
};

void l2_norm(const L2NormArgs& args);
void l2_norm_reference(const L2NormArgs& args);

}  // namespace tandem
