#pragma once

#include <string>
#include <vector>

#include "runtime/chat/chat_template.h"
#include "runtime/engine/engine.h"
#include "runtime/server/api_request.h"
#include "runtime/server/pack_defaults.h"
#include "runtime/tokenizer/tokenizer.h"

namespace tandem {

/// A loaded model as the server uses it: turns what clients ask into what the engine does.
class ServedModel {
 public:
  /// All must outlive this.
  /// @param chat  nullptr when the pack has no chat template: chats are refused then
  ServedModel(Engine& engine, const Tokenizer& tokenizer, const ChatTemplate* chat, SamplingParameters defaults,
              EndTokens end);

  Engine& engine() const { return engine_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  const SamplingParameters& defaults() const { return defaults_; }

  /// @throws ApiError  400: the template refuses the messages, or the prompt leaves no room for an answer
  GenerationRequest chat_generation(const ChatRequest& request) const;
  GenerationRequest completion_generation(const CompletionRequest& request) const;

  /// A chat's prompt as token ids. @throws ApiError 400
  std::vector<int32_t> chat_prompt(const nlohmann::ordered_json& template_arguments) const;

 private:
  GenerationRequest generation(const CommonRequest& request, std::vector<int32_t> prompt,
                               int64_t default_max_tokens) const;

  Engine& engine_;
  const Tokenizer& tokenizer_;
  const ChatTemplate* chat_;
  const SamplingParameters defaults_;
  const EndTokens end_;
};

}  // namespace tandem
