#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/tokenizer.h"

namespace tandem {

/// Finds stop strings in text that arrives in pieces. Text that may begin a stop string is held back.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);

  /// @return  text that is certainly no part of a stop string; all of it up to a match, nothing after one
  std::string push(std::string_view text);
  /// What was held back: no stop string will come of it any more.
  std::string flush();
  /// The stop string that was found: the one that ends first, and of those the longest, however the text was cut.
  const std::optional<std::string>& matched() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  std::optional<std::string> matched_;
};

/// Turns the tokens of an answer into text: whole UTF-8 characters, reasoning apart from the answer proper, stop
/// strings found, control tokens left out.
class AnswerText {
 public:
  struct Options {
    bool chat = true;                       ///< splits reasoning off and drops <think> marks; false: raw completion
    bool thinking_open = false;             ///< the prompt ends inside a reasoning block
    std::vector<std::string> stop;          ///< of the client: end the answer, never the reasoning
    std::vector<std::string> control_stop;  ///< spellings of end-of-turn tokens: a model may write them out
  };
  struct Delta {
    std::string reasoning;
    std::string content;
    bool empty() const { return reasoning.empty() && content.empty(); }
  };

  /// `tokenizer` must outlive this.
  AnswerText(const Tokenizer& tokenizer, Options options);

  /// What can be shown after one more token.
  Delta push(int32_t token);
  /// The rest, once no more tokens come: an incomplete character becomes U+FFFD.
  Delta finish();

  /// The stop string that ended the text; nothing may be pushed afterwards.
  const std::optional<std::string>& stopped_by() const;
  bool thinking() const { return thinking_; }

 private:
  void add_text(std::string_view bytes, Delta& delta);
  void switch_to(bool thinking, Delta& delta);
  void flush_bytes(Delta& delta);

  const Tokenizer& tokenizer_;
  const bool chat_;
  bool thinking_;
  std::optional<int32_t> think_begin_, think_end_, tool_call_;
  std::string bytes_;  ///< an incomplete UTF-8 character
  StopMatcher content_, reasoning_;
};

/// True when the last reasoning block of a rendered prompt is still open. Told by token ids, which the words of users
/// cannot become.
bool ends_inside_reasoning(const Tokenizer& tokenizer, const std::vector<int32_t>& prompt);

}  // namespace tandem
