#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/engine/generation.h"

namespace tandem {

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
  std::vector<Json> delta_chunks(const AnswerText::Delta& delta) const;
  Json last_chunk(const GenerationResult& result) const;
  Json usage_chunk(const GenerationResult& result) const;

  /// The whole answer at once.
  Json whole(const AnswerText::Delta& all, const GenerationResult& result) const;

 private:
  Json chunk(Json delta, Json finish_reason) const;

  const bool chat_;
  const std::string id_;
  const std::string model_;
  const int64_t created_;
  const bool include_usage_;
};

/// "chatcmpl-4f1d..." and the like: a prefix and 24 random hex digits.
std::string unique_id(const std::string& prefix);

}  // namespace tandem
