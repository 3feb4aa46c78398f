#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/engine/sampler.h"

namespace tandem {

/// What chat and completion requests share.
struct CommonRequest {
  std::string model;  ///< "" when not given
  SamplingParameters sampling;
  std::optional<int64_t> max_tokens;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  bool stream = false;
  bool include_usage = false;
};

struct ChatRequest : CommonRequest {
  /// The template's arguments: messages (content always a string, arguments of tool calls always an object), tools when
  /// there are any and the model may call them, and what chat_template_kwargs hold.
  nlohmann::ordered_json template_arguments;
};

struct CompletionRequest : CommonRequest {
  std::string text;
  std::optional<std::vector<int32_t>> tokens;  ///< instead of text
};

/// A client's body as JSON, at most 64 levels deep.
/// @throws ApiError  400
nlohmann::ordered_json parse_body(std::string_view body);

/// An array of token ids; `name` is the field's.
/// @throws ApiError  400
std::vector<int32_t> parse_token_ids(const nlohmann::ordered_json& array, const std::string& name);

/// Fields that are unknown are ignored; known ones of a wrong type, out of range, or asking for what this server does
/// not do are refused by name.
/// @throws ApiError  400 with `param`
ChatRequest parse_chat_request(std::string_view body, const SamplingParameters& defaults);
CompletionRequest parse_completion_request(std::string_view body, const SamplingParameters& defaults);

}  // namespace tandem
