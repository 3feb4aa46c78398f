#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/engine/generation.h"

namespace tandem {

/// One call of a tool, as the model wrote it.
struct ToolCall {
  std::string id;  ///< unique, made here
  std::string name;
  std::string arguments;  ///< a JSON object
};

/// A piece of a chat answer.
struct ChatDelta {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> tool_calls;
  bool empty() const { return reasoning.empty() && content.empty() && tool_calls.empty(); }
};

/// Builds OpenAI's response objects of one answer.
class ResponseBuilder {
 public:
  using Json = nlohmann::ordered_json;

  /// @param chat  chat.completion objects, else text_completion
  ResponseBuilder(bool chat, std::string model, bool include_usage);

  const std::string& id() const { return id_; }

  // Streams: a first chunk with the role, one or more a delta, a last one with the finish reason, perhaps one with
  // usage.
  Json first_chunk() const;
  std::vector<Json> delta_chunks(const ChatDelta& delta);
  Json last_chunk(const GenerationResult& result) const;
  Json usage_chunk(const GenerationResult& result) const;

  /// The whole answer at once.
  Json whole(const ChatDelta& all, const GenerationResult& result);

 private:
  Json chunk(Json delta, Json finish_reason) const;
  Json finish_reason(const GenerationResult& result) const;

  const bool chat_;
  const std::string id_;
  const std::string model_;
  const int64_t created_;
  const bool include_usage_;
  int64_t calls_sent_ = 0;
};

/// "chatcmpl-4f1d..." and the like: a prefix and 24 random hex digits.
std::string unique_id(const std::string& prefix);

}  // namespace tandem
