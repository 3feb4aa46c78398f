#include "runtime/engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tandem {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): every input bit reaches every output bit.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

}  // namespace

bool SamplingParameters::is_argmax() const {
  return greedy() && presence_penalty == 0 && frequency_penalty == 0 && repetition_penalty == 1 && logit_bias.empty();
}

double uniform_at(uint64_t seed, uint64_t position) {
  constexpr uint64_t kGolden = 0x9E3779B97F4A7C15U;
  const uint64_t bits = mix(mix(seed + kGolden) + (position + 1) * kGolden);
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

Sampler::Sampler(SamplingParameters parameters, std::span<const int32_t> prompt, const std::vector<bool>& allowed)
    : parameters_(std::move(parameters)), allowed_(allowed) {
  if (parameters_.repetition_penalty != 1)
    for (const int32_t id : prompt) counts_[id].in_prompt = true;
}

void Sampler::accept(int32_t token) {
  if (parameters_.repetition_penalty != 1 || parameters_.presence_penalty != 0 || parameters_.frequency_penalty != 0)
    ++counts_[token].in_answer;
}

void Sampler::adjust(std::span<float> logits) const {
  const auto vocab_size = static_cast<int64_t>(logits.size());
  const auto valid = [&](int32_t id) { return id >= 0 && id < vocab_size; };
  for (const auto& [id, bias] : parameters_.logit_bias)
    if (valid(id)) logits[id] += static_cast<float>(bias);
  for (const auto& [id, count] : counts_) {
    if (!valid(id)) continue;
    float& logit = logits[id];
    const auto repetition = static_cast<float>(parameters_.repetition_penalty);
    if (repetition != 1) logit = logit > 0 ? logit / repetition : logit * repetition;
    if (count.in_answer > 0)
      logit -= static_cast<float>(parameters_.frequency_penalty * static_cast<double>(count.in_answer) +
                                  parameters_.presence_penalty);
  }
}

int32_t Sampler::sample(std::span<float> logits, int64_t position) {
  for (size_t i = 0; i < logits.size(); ++i)
    if (!std::isfinite(logits[i]))
      throw BadLogits("the model computed a value that is not a number for token " + std::to_string(i) +
                      " at position " + std::to_string(position));
  adjust(logits);
  float highest = kNever;
  int32_t best = -1;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!allowed_[i]) logits[i] = kNever;
    if (logits[i] > highest) {
      highest = logits[i];
      best = static_cast<int32_t>(i);
    }
  }
  if (best < 0) throw BadLogits("no token can follow at position " + std::to_string(position));
  return parameters_.greedy() ? best : draw(logits, highest, position);
}

int32_t Sampler::draw(std::span<const float> logits, float highest, int64_t position) {
  const auto likelier = [](const Candidate& a, const Candidate& b) { return a.before(b); };
  const double scale = 1.0 / parameters_.temperature;
  const auto weight = [&](float logit) { return std::exp((static_cast<double>(logit) - highest) * scale); };

  // min_p needs no sum: it compares with the likeliest token, whose weight is 1.
  const auto limit = parameters_.top_k > 0 ? static_cast<size_t>(parameters_.top_k) : logits.size();
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    const Candidate candidate{logits[i], static_cast<int32_t>(i)};
    if (candidate.logit == kNever || weight(candidate.logit) < parameters_.min_p) continue;
    if (candidates_.size() < limit) {
      candidates_.push_back(candidate);
      if (parameters_.top_k > 0) std::push_heap(candidates_.begin(), candidates_.end(), likelier);
    } else if (candidate.before(candidates_.front())) {  // the heap's front is the least likely one kept
      std::pop_heap(candidates_.begin(), candidates_.end(), likelier);
      candidates_.back() = candidate;
      std::push_heap(candidates_.begin(), candidates_.end(), likelier);
    }
  }

  double total = 0;
  for (const Candidate& candidate : candidates_) total += weight(candidate.logit);
  size_t kept = candidates_.size();
  if (parameters_.top_p < 1) {
    // A heap hands out the likeliest first; only as many as top_p needs are ever put in order.
    const auto less_likely = [](const Candidate& a, const Candidate& b) { return b.before(a); };
    std::make_heap(candidates_.begin(), candidates_.end(), less_likely);
    const double wanted = parameters_.top_p * total;
    double mass = 0;
    auto end = candidates_.end();
    do {
      std::pop_heap(candidates_.begin(), end, less_likely);
      mass += weight((--end)->logit);
    } while (mass < wanted && end != candidates_.begin());
    kept = static_cast<size_t>(candidates_.end() - end);
    std::reverse(candidates_.begin(), candidates_.end());
    total = mass;
  }

  double left = uniform_at(parameters_.seed, static_cast<uint64_t>(position)) * total;
  for (size_t i = 0; i < kept; ++i) {
    left -= weight(candidates_[i].logit);
    if (left < 0) return candidates_[i].id;
  }
  return candidates_[kept - 1].id;  // rounding left a crumb
}

}  // namespace tandem
