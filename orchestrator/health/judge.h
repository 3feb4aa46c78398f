#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tandem::health {

/// One answer of the model to a probe.
struct Answer {
  std::string prompt;
  std::string text;           ///< message.content
  std::string finish_reason;  ///< as the server said it; "" when it said none
  double seconds = 0;
};

/// Looks at an answer the way a person would: is it text at all, does it repeat itself, does it say what it must, did
/// it end by itself. Engines whose state has collapsed answer quickly, with status 200, and with nonsense.
/// @param expect  must occur in the text, ignoring case, not as part of a longer word or number; "" asks for nothing
/// @return what is wrong with it, as one sentence; nothing when it is sound
std::optional<std::string> judge_answer(const Answer& answer, std::string_view expect);

/// The reason why a text counts as degenerate: one character or one short passage over and over, hardly any different
/// words. Nothing for ordinary text, however dull.
std::optional<std::string> find_degeneration(std::string_view text);

}  // namespace tandem::health
