#pragma once

#include <cstdint>

namespace tandem {

class ThreadPool;

/// y = x / sqrt(mean(x^2) + eps) * weight, for each row; with `delta` first x + delta, which is the residual stream.
/// Strides count floats from row to row; 0 stands for packed rows.
/// Source: arXiv:1910.07467. A row's bits do not depend on the other rows or on the pool.
struct RmsNormArgs {
  int64_t rows = 0;
  int64_t width = 0;
  float eps = 1e-6f;
  const float* x = nullptr;  // (rows, width)
  int64_t x_stride = 0;
  const float* weight = nullptr;  // (width)
  const float* delta = nullptr;   // (rows, width), or null: norm of x alone
  int64_t delta_stride = 0;
  float* sum = nullptr;  // (rows, width), gets x + delta; needed with delta; may be x
  int64_t sum_stride = 0;
  float* y = nullptr;  // (rows, width); may be x or delta
  int64_t y_stride = 0;
  ThreadPool* pool = nullptr;
};

void rms_norm(const RmsNormArgs& args);
void rms_norm_reference(const RmsNormArgs& args);

/// The output norm of KDA: per head y = x / sqrt(mean(x^2) + eps) * weight * sigmoid(gate), the weight shared by the
/// heads. Heads lie packed inside a row; strides count floats from row to row; 0 stands for packed rows.
struct GatedRmsNormArgs {
  int64_t rows = 0;
  int64_t heads = 0;
  int64_t width = 0;  // of one head
  float eps = 1e-6f;
  const float* x = nullptr;  // (rows, heads, width)
  int64_t x_stride = 0;
  const float* weight = nullptr;  // (width)
  const float* gate = nullptr;    // (rows, heads, width), before the sigmoid
  int64_t gate_stride = 0;
  float* y = nullptr;  // (rows, heads, width); may be x or gate
  int64_t y_stride = 0;
  ThreadPool* pool = nullptr;
};

void gated_rms_norm(const GatedRmsNormArgs& args);
void gated_rms_norm_reference(const GatedRmsNormArgs& args);

}  // namespace tandem
