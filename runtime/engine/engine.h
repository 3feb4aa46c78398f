#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/common/error.h"
#include "runtime/engine/generation.h"
#include "runtime/engine/metrics.h"
#include "runtime/engine/token_model.h"

namespace tandem {

struct EngineOptions {
  int64_t max_waiting = 16;                        ///< requests that may wait while one runs
  std::vector<int32_t> end_token_ids;              ///< end of turn, end of text
  std::chrono::milliseconds idle_interval{5'000};  ///< between proofs of life to the other ranks
};

struct EngineStatus {
  int64_t running = 0;
  int64_t waiting = 0;
  int64_t tokens_in_sequence = 0;
  /// How long the step under way has taken; 0 when there is nothing to do.
  std::chrono::milliseconds step_age{0};
};

/// Runs requests one after the other on rank 0: the prompt chunk by chunk, then token by token; at every step it looks
/// whether the client still waits. submit(), stop(), fail() and status() may be called from any thread.
class Engine {
 public:
  /// `model` and `tokenizer` must outlive the engine.
  Engine(TokenModel& model, const Tokenizer& tokenizer, EngineOptions options);

  /// Queues a request.
  /// @param request  prompt not empty and shorter than the context; max_tokens >= 1 and within what is left of it
  /// @return  nothing when the queue is full
  /// @throws Error  kind `interrupted` when the engine stops, the engine's own error when it failed
  std::shared_ptr<Generation> submit(GenerationRequest request);

  /// Works until stop() or an error that ends the engine, which is thrown after all open answers got it. An answer's
  /// own failure (values that are not numbers) ends only that answer.
  void run();

  /// One answer on the calling thread, before run(): is the model able to speak at all?
  /// @throws Error  kind `internal`, when it computes values that are not numbers
  GenerationResult warm_up(const std::vector<int32_t>& prompt, int64_t tokens);

  /// Ends run() at the next step; open answers end with "server_shutdown".
  void stop();
  /// Ends all open answers with this error and lets no new ones in. For errors seen outside of run(), which may itself
  /// be blocked in an exchange with a lost rank.
  void fail(const Error& error);

  EngineStatus status() const;
  const EngineMetrics& metrics() const { return metrics_; }
  int64_t context() const { return model_.context(); }

 private:
  using Clock = std::chrono::steady_clock;
  class Answer;

  std::shared_ptr<Generation> next();
  void serve(const std::shared_ptr<Generation>& generation);
  GenerationResult generate(Generation& generation);
  int32_t choose(Sampler& sampler, int64_t position);
  bool stopping() const;
  void touch();
  void end_all(const GenerationFailure& failure);

  TokenModel& model_;
  const Tokenizer& tokenizer_;
  const EngineOptions options_;
  std::vector<bool> allowed_;  // (vocab_size): ids that stand for something
  std::vector<float> logits_;
  EngineMetrics metrics_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Generation>> waiting_;
  std::shared_ptr<Generation> running_;
  std::optional<Error> failure_;
  bool stop_ = false;
  Clock::time_point step_began_;
  int64_t tokens_in_sequence_ = 0;
};

}  // namespace tandem
