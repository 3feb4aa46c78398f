#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "runtime/engine/sampler.h"
#include "runtime/engine/token_model.h"

namespace tandem::test {

/// A model that says what a test wants: `next` gives the token that follows a sequence.
class ScriptedModel final : public TokenModel {
 public:
  std::function<int32_t(const std::vector<int32_t>& sequence)> next = [](const auto&) { return 0; };
  int64_t vocabulary = 2048;
  int64_t context_tokens = 4096;
  int64_t chunk = 8;
  std::chrono::milliseconds step_time{0};
  std::atomic<bool> nan = false;
  std::atomic<int64_t> prefill_chunks{0};
  std::atomic<int64_t> decode_steps{0};
  std::atomic<int64_t> idles{0};
  std::atomic<int64_t> stops{0};

  int64_t vocab_size() const override { return vocabulary; }
  int64_t context() const override { return context_tokens; }
  int64_t prefill_chunk() const override { return chunk; }
  void clear() override { sequence_.clear(); }
  void prefill(std::span<const int32_t> tokens) override {
    std::this_thread::sleep_for(step_time);
    ++prefill_chunks;
    append(tokens);
    prompt_length_ = sequence_.size();
  }
  void decode(int32_t token) override {
    std::this_thread::sleep_for(step_time);
    ++decode_steps;
    append({&token, 1});
  }
  void logits(std::span<float> logits) override {
    std::fill(logits.begin(), logits.end(), 0.0F);
    logits[static_cast<size_t>(next(sequence_))] = 20.0F;
    if (nan) logits[7] = std::numeric_limits<float>::quiet_NaN();
  }
  int32_t argmax() override {
    if (nan) throw BadLogits("the model computed a value that is not a number");
    return next(sequence_);
  }
  void idle() override { ++idles; }
  void stop() override { ++stops; }

  const std::vector<int32_t>& sequence() const { return sequence_; }
  size_t prompt_length() const { return prompt_length_; }

 private:
  void append(std::span<const int32_t> tokens) {
    sequence_.insert(sequence_.end(), tokens.begin(), tokens.end());
    if (static_cast<int64_t>(sequence_.size()) > context_tokens) throw std::logic_error("sequence beyond the context");
  }

  std::vector<int32_t> sequence_;
  size_t prompt_length_ = 0;
};

}  // namespace tandem::test
