#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "runtime/model/model.h"

namespace tandem {

/// A file of sequences to score, one JSON object a line: {"tokens": [1, 2, 3]}.
/// @param vocab_size  tokens are in [0, vocab_size)
/// @param max_tokens  the most tokens of one sequence
/// @throws Error      kind `usage` with FILE:LINE: not such an object, a token out of range, an empty or too long
///                    sequence, an empty file
std::vector<std::vector<int32_t>> read_token_lines(const std::filesystem::path& path, int64_t vocab_size,
                                                   int64_t max_tokens);

struct ScoreOptions {
  std::filesystem::path out;
  bool logits = false;
  bool mtp = false;
  std::function<void()> between_chunks;                    ///< may throw
  std::function<void(int64_t done, int64_t of)> progress;  ///< after each sequence
};

/// How many tokens a row of top_ids and top_logprobs has.
inline constexpr int64_t kScoreTop = 8;

struct ScoreSummary {
  int64_t sequences = 0;
  int64_t predicted_tokens = 0;
  double negative_log_likelihood = 0;  ///< mean over the predicted tokens
};

/// Runs each sequence through the model from an empty state and writes a safetensors file: for sequence N
///   logprobs.N      fp32  [len - 1]        log-probability of the token that follows
///   top_ids.N       int32 [len, 8]         most likely next tokens, best first
///   top_logprobs.N  fp32  [len, 8]
///   logits.N        fp32  [len, vocab]     with `logits`
///   mtp_logits.N    fp32  [len - 1, vocab] with `mtp`: row i from (hidden i, token i + 1)
/// Collective: all ranks call it; rank 0's sequences and options count, and rank 0 writes.
ScoreSummary score(Model& model, std::vector<std::vector<int32_t>> sequences, const ScoreOptions& options);

}  // namespace tandem
