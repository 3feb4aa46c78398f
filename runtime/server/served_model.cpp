#include "runtime/server/served_model.h"

#include <algorithm>

#include "runtime/server/api_error.h"

namespace tandem {
namespace {

/// OpenAI's default for completions; a chat without a limit may use what is left of the context.
constexpr int64_t kCompletionTokens = 16;

}  // namespace

ServedModel::ServedModel(Engine& engine, const Tokenizer& tokenizer, const ChatTemplate* chat,
                         SamplingParameters defaults, EndTokens end)
    : engine_(engine), tokenizer_(tokenizer), chat_(chat), defaults_(std::move(defaults)), end_(std::move(end)) {}

std::vector<int32_t> ServedModel::chat_prompt(const nlohmann::ordered_json& template_arguments) const {
  if (chat_ == nullptr) throw bad_request("this model has no chat template: use /v1/completions", "messages");
  try {
    return tokenizer_.encode(chat_->render(template_arguments));
  } catch (const Error& error) {
    throw bad_request(std::string("the chat template refused the messages: ") + error.what() +
                          (error.where().empty() ? "" : " (" + error.where() + ")"),
                      "messages");
  }
}

GenerationRequest ServedModel::chat_generation(const ChatRequest& request) const {
  GenerationRequest generation = this->generation(request, chat_prompt(request.template_arguments), engine_.context());
  generation.text.chat = true;
  generation.text.thinking_open = ends_inside_reasoning(tokenizer_, generation.prompt);
  if (!request.ignore_eos) generation.text.control_stop = end_.spellings;
  return generation;
}

GenerationRequest ServedModel::completion_generation(const CompletionRequest& request) const {
  std::vector<int32_t> prompt;
  if (request.tokens) {
    prompt = *request.tokens;
    for (const int32_t id : prompt)
      if (id >= tokenizer_.vocabulary_size())
        throw bad_request("token " + std::to_string(id) + " of `prompt` is past the last one, " +
                              std::to_string(tokenizer_.vocabulary_size() - 1),
                          "prompt");
  } else {
    prompt = tokenizer_.encode_untrusted(request.text);
  }
  if (prompt.empty()) throw bad_request("`prompt` is empty: there is nothing to complete", "prompt");
  GenerationRequest generation = this->generation(request, std::move(prompt), kCompletionTokens);
  generation.text.chat = false;
  return generation;
}

GenerationRequest ServedModel::generation(const CommonRequest& request, std::vector<int32_t> prompt,
                                          int64_t default_max_tokens) const {
  const int64_t context = engine_.context();
  const auto prompt_tokens = static_cast<int64_t>(prompt.size());
  if (prompt_tokens >= context)
    throw ApiError(400, "invalid_request_error", "context_length_exceeded",
                   "This server's maximum context length is " + std::to_string(context) + " tokens, the prompt has " +
                       std::to_string(prompt_tokens) + ".",
                   "messages");
  GenerationRequest generation;
  generation.prompt = std::move(prompt);
  generation.sampling = request.sampling;
  generation.max_tokens = std::min(request.max_tokens.value_or(default_max_tokens), context - prompt_tokens);
  generation.stop_token_ids = request.stop_token_ids;
  generation.ignore_eos = request.ignore_eos;
  generation.text.stop = request.stop;
  return generation;
}

}  // namespace tandem
