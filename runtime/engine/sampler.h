#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/common/error.h"

namespace tandem {

/// How the next token is chosen from the logits. The defaults leave the model's distribution as it is.
struct SamplingParameters {
  double temperature = 1.0;  ///< 0 takes the most likely token, the lowest id on ties
  double top_p = 1.0;        ///< smallest set of likeliest tokens with at least this mass
  int64_t top_k = 0;         ///< 0: no limit
  double min_p = 0.0;        ///< drops tokens less likely than this share of the likeliest one
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  double repetition_penalty = 1.0;  ///< counts the prompt's tokens too, the other two only the answer's
  std::vector<std::pair<int32_t, double>> logit_bias;
  uint64_t seed = 0;

  bool greedy() const { return temperature <= 0; }
  /// True when the choice is the plain argmax of the logits.
  bool is_argmax() const;
};

/// Logits that no token can be chosen from. Ends the request, not the engine.
class BadLogits : public Error {
 public:
  explicit BadLogits(std::string what)
      : Error(ErrorKind::internal, std::move(what), "", "check the pack's files against their hashes") {}
};

/// A number in [0, 1) that depends on seed and position alone: a token does not change with what else runs in its
/// batch, nor with whether it was drafted.
double uniform_at(uint64_t seed, uint64_t position);

/// Chooses the tokens of one answer. Order of the steps: allowed ids, bias, penalties, temperature, min_p, top_k,
/// top_p.
class Sampler {
 public:
  /// @param allowed  (vocab_size) false for ids that stand for nothing; must outlive the sampler
  Sampler(SamplingParameters parameters, std::span<const int32_t> prompt, const std::vector<bool>& allowed);

  /// @param logits    (vocab_size), changed in place
  /// @param position  of the token to choose in its sequence
  /// @throws BadLogits  when one is NaN or infinite: garbage must end the request, not become text
  int32_t sample(std::span<float> logits, int64_t position);

  /// Counts a token of the answer, for the penalties.
  void accept(int32_t token);

  const SamplingParameters& parameters() const { return parameters_; }

 private:
  struct Candidate {
    float logit;
    int32_t id;
    /// The likelier first, the lower id on ties.
    bool before(const Candidate& other) const { return logit != other.logit ? logit > other.logit : id < other.id; }
  };
  struct Count {
    int64_t in_answer = 0;
    bool in_prompt = false;
  };

  void adjust(std::span<float> logits) const;
  int32_t draw(std::span<const float> logits, float highest, int64_t position);

  SamplingParameters parameters_;
  const std::vector<bool>& allowed_;
  std::unordered_map<int32_t, Count> counts_;
  std::vector<Candidate> candidates_;
};

}  // namespace tandem
