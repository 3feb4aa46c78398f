#pragma once

#include <cstdint>

namespace tandem {

class ThreadPool;

/// Rows of logits, of which the first `vocab_size` columns stand for tokens: heads have rows beyond the vocabulary,
/// with meaningless scores. NaN counts as the lowest value. Stride counts floats from row to row; 0 stands for packed
/// rows.
struct LogitRows {
  int64_t rows = 0;
  int64_t vocab_size = 0;  // at least 1
  const float* logits = nullptr;
  int64_t stride = 0;
  ThreadPool* pool = nullptr;
};

/// The most likely token of each row, the lowest on ties.
/// @param tokens  (rows)
/// @param values  (rows): its logit; may be null
void argmax(const LogitRows& x, int32_t* tokens, float* values = nullptr);
void argmax_reference(const LogitRows& x, int32_t* tokens, float* values = nullptr);

/// log(sum(exp(logits))) of each row. @param y  (rows)
void log_sum_exp(const LogitRows& x, float* y);
void log_sum_exp_reference(const LogitRows& x, float* y);

/// logits - log_sum_exp. @param y  (rows, vocab_size), `y_stride` floats from row to row (0: packed); may be the logits
void log_softmax(const LogitRows& x, float* y, int64_t y_stride = 0);
void log_softmax_reference(const LogitRows& x, float* y, int64_t y_stride = 0);

inline constexpr int64_t kMaxTopLogits = 64;

/// The k most likely tokens of each row, best first, lower tokens first on ties. 1 <= k <= min(64, vocab_size).
/// @param tokens, values  (rows, k) packed
void top_logits(const LogitRows& x, int64_t k, int32_t* tokens, float* values);
void top_logits_reference(const LogitRows& x, int64_t k, int32_t* tokens, float* values);

}  // namespace tandem
