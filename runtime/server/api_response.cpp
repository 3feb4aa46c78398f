#include "runtime/server/api_response.h"

#include <chrono>
#include <random>

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

double milliseconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

double per_second(int64_t count, double ms) {
  return ms > 0 ? static_cast<double>(count) * 1000.0 / ms : 0.0;
}

Json usage(const GenerationResult& result) {
  return {{"prompt_tokens", result.prompt_tokens},
          {"completion_tokens", result.completion_tokens},
          {"total_tokens", result.prompt_tokens + result.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", 0}}},
          {"completion_tokens_details", {{"reasoning_tokens", result.reasoning_tokens}}}};
}

/// llama.cpp's block. The first token comes out of the prompt's pass, so the decode rate counts the others.
Json timings(const GenerationResult& result) {
  const double prompt_ms = milliseconds(result.times.prefill), decode_ms = milliseconds(result.times.decode);
  return {{"queue_ms", milliseconds(result.times.queued)},
          {"prompt_n", result.prompt_tokens},
          {"prompt_ms", prompt_ms},
          {"prompt_per_second", per_second(result.prompt_tokens, prompt_ms)},
          {"predicted_n", result.completion_tokens},
          {"predicted_ms", decode_ms},
          {"predicted_per_second", per_second(result.completion_tokens - 1, decode_ms)}};
}

/// What ended the text: the stop string, or nothing to tell.
Json stop_reason(const GenerationResult& result) {
  return result.detail == FinishDetail::stop_string ? Json(result.stop_string) : Json();
}

Json finish_reason(const GenerationResult& result) {
  return result.reason == FinishReason::length ? "length" : "stop";
}

}  // namespace

std::string unique_id(const std::string& prefix) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::random_device device;
  std::string id = prefix;
  for (int i = 0; i < 3; ++i) {
    uint32_t bits = device();
    for (int digit = 0; digit < 8; ++digit, bits >>= 4) id += kHex[bits & 15];
  }
  return id;
}

ResponseBuilder::ResponseBuilder(bool chat, std::string model, bool include_usage)
    : chat_(chat),
      id_(unique_id(chat ? "chatcmpl-" : "cmpl-")),
      model_(std::move(model)),
      created_(std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
                   .count()),
      include_usage_(include_usage) {}

Json ResponseBuilder::chunk(Json delta, Json finish_reason) const {
  Json choice = {{"index", 0}};
  if (chat_)
    choice["delta"] = std::move(delta);
  else
    choice["text"] = delta.value("content", "");
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = std::move(finish_reason);
  Json object = {{"id", id_},
                 {"object", chat_ ? "chat.completion.chunk" : "text_completion"},
                 {"created", created_},
                 {"model", model_},
                 {"choices", Json::array({std::move(choice)})}};
  if (include_usage_) object["usage"] = nullptr;
  return object;
}

Json ResponseBuilder::first_chunk() const {
  return chunk({{"role", "assistant"}, {"content", ""}}, nullptr);
}

std::vector<Json> ResponseBuilder::delta_chunks(const AnswerText::Delta& delta) const {
  std::vector<Json> chunks;
  if (!delta.reasoning.empty()) chunks.push_back(chunk({{"reasoning_content", delta.reasoning}}, nullptr));
  if (!delta.content.empty()) chunks.push_back(chunk({{"content", delta.content}}, nullptr));
  return chunks;
}

Json ResponseBuilder::last_chunk(const GenerationResult& result) const {
  Json object = chunk(Json::object(), finish_reason(result));
  object["choices"][0]["stop_reason"] = stop_reason(result);
  object["timings"] = timings(result);
  return object;
}

Json ResponseBuilder::usage_chunk(const GenerationResult& result) const {
  Json object = chunk(Json::object(), nullptr);
  object["choices"] = Json::array();
  object["usage"] = usage(result);
  return object;
}

Json ResponseBuilder::whole(const AnswerText::Delta& all, const GenerationResult& result) const {
  Json choice = {{"index", 0}};
  if (chat_) {
    choice["message"] = {{"role", "assistant"}, {"content", all.content}};
    if (!all.reasoning.empty()) choice["message"]["reasoning_content"] = all.reasoning;
  } else {
    choice["text"] = all.content;
  }
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = finish_reason(result);
  choice["stop_reason"] = stop_reason(result);
  return {{"id", id_},
          {"object", chat_ ? "chat.completion" : "text_completion"},
          {"created", created_},
          {"model", model_},
          {"choices", Json::array({std::move(choice)})},
          {"usage", usage(result)},
          {"timings", timings(result)}};
}

}  // namespace tandem
