#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runtime/engine/answer_text.h"
#include "runtime/engine/sampler.h"

namespace tandem {

/// One answer to be generated.
struct GenerationRequest {
  std::string id;  ///< for the log
  std::vector<int32_t> prompt;
  SamplingParameters sampling;
  int64_t max_tokens = 0;
  std::vector<int32_t> stop_token_ids;  ///< beside the model's own end tokens
  bool ignore_eos = false;
  AnswerText::Options text;
};

enum class FinishReason { stop, length };

/// What ended an answer, in more detail than clients' libraries understand.
enum class FinishDetail { stop_token, stop_string, max_tokens };

struct GenerationTimes {
  std::chrono::nanoseconds queued{0};
  std::chrono::nanoseconds prefill{0};
  std::chrono::nanoseconds decode{0};  ///< from the first token to the last
};

struct GenerationResult {
  FinishReason reason = FinishReason::stop;
  FinishDetail detail = FinishDetail::stop_token;
  std::string stop_string;
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t reasoning_tokens = 0;
  GenerationTimes times;
};

/// Why an answer broke off. `code` is the word clients key on.
struct GenerationFailure {
  std::string code;  ///< "engine_failure" or "server_shutdown"
  std::string message;
};

/// What a client waits for, in order: any number of deltas, then a result or a failure.
using GenerationEvent = std::variant<AnswerText::Delta, GenerationResult, GenerationFailure>;

/// An answer under way, shared by the engine, which fills it, and one client, which reads it.
class Generation {
 public:
  explicit Generation(GenerationRequest request)
      : request_(std::move(request)), submitted_(std::chrono::steady_clock::now()) {}

  const GenerationRequest& request() const { return request_; }
  std::chrono::steady_clock::time_point submitted() const { return submitted_; }

  /// Client: the next event, or nothing after `patience`.
  std::optional<GenerationEvent> wait(std::chrono::milliseconds patience);
  /// Client: nobody waits any more. The engine stops at the next step and tells nothing further.
  void cancel();
  bool cancelled() const;

  /// Engine. Nothing can follow a result or a failure.
  void push(GenerationEvent event);

 private:
  const GenerationRequest request_;
  const std::chrono::steady_clock::time_point submitted_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<GenerationEvent> events_;
  bool ended_ = false;
  bool cancelled_ = false;
};

}  // namespace tandem
