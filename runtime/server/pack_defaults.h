#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/engine/sampler.h"

namespace tandem {

class Tokenizer;

/// What the pack's generation_config.json recommends, OpenAI's defaults where it says nothing; a request overrides
/// each.
/// @throws Error  kind `pack`, when the file is not JSON or a value is out of range
SamplingParameters read_sampling_defaults(const std::filesystem::path& pack);

/// What ends an answer.
struct EndTokens {
  std::vector<int32_t> ids;
  std::vector<std::string> spellings;  ///< of those that are control tokens: models at times write them out
};

/// The union of what config.json, generation_config.json and tokenizer_config.json name, since packs disagree about
/// which file tells the whole story.
/// @throws Error  kind `pack`
EndTokens read_end_tokens(const std::filesystem::path& pack, const Tokenizer& tokenizer);

}  // namespace tandem
