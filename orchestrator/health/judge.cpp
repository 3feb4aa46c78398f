#include "orchestrator/health/judge.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <sstream>
#include <vector>

#include "runtime/common/error.h"

namespace tandem::health {
namespace {

/// A dashed line in a table is no collapse; a page of exclamation marks is.
constexpr size_t kLongestRun = 24;
constexpr size_t kLongestRule = 200;
constexpr std::string_view kRuleCharacters = "-=_*.~#|";
/// A passage of at most this many bytes ...
constexpr size_t kLongestPassage = 64;
/// ... repeated without a break this often, over at least this many bytes, is a loop.
constexpr size_t kFewestRepeats = 6;
constexpr size_t kShortestLoop = 48;
constexpr size_t kFewestWords = 40;
constexpr double kLeastVariety = 0.15;

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || static_cast<unsigned char>(c) >= 0x80;
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), [](unsigned char c) { return std::tolower(c); });
  return result;
}

bool contains_word(std::string_view text, std::string_view word) {
  const std::string haystack = lower(text);
  const std::string needle = lower(word);
  for (size_t at = haystack.find(needle); at != std::string::npos; at = haystack.find(needle, at + 1)) {
    const size_t end = at + needle.size();
    const bool open = at == 0 || !is_word(needle.front()) || !is_word(haystack[at - 1]);
    const bool closed = end == haystack.size() || !is_word(needle.back()) || !is_word(haystack[end]);
    if (open && closed) return true;
  }
  return false;
}

std::optional<std::string> find_unprintable(std::string_view text) {
  if (text.find("\xef\xbf\xbd") != std::string_view::npos) return "it holds U+FFFD, so bytes of a character were lost";
  std::string visible(text);
  std::erase_if(visible, [](char c) { return c == '\t' || c == '\r'; });
  if (printable(visible, visible.size() * 4 + 16) != visible) return "it holds control characters or invalid UTF-8";
  return std::nullopt;
}

}  // namespace

std::optional<std::string> find_degeneration(std::string_view text) {
  size_t run = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    run = i > 0 && text[i] == text[i - 1] ? run + 1 : 1;
    const bool rule = kRuleCharacters.find(text[i]) != std::string_view::npos;
    if (!std::isspace(static_cast<unsigned char>(text[i])) && run > (rule ? kLongestRule : kLongestRun))
      return "it repeats one character, `" + printable(std::string_view(&text[i], 1)) + "`, over and over";
  }
  // Comparing the text with itself shifted by `period`: a long stretch of matches is a passage that repeats.
  for (size_t period = 2; period <= std::min(kLongestPassage, text.size() / 2); ++period) {
    size_t matching = 0;
    for (size_t i = period; i < text.size(); ++i) {
      matching = text[i] == text[i - period] ? matching + 1 : 0;
      const size_t length = matching + period;
      const std::string_view passage = text.substr(i + 1 - period, period);
      const bool has_words = std::any_of(passage.begin(), passage.end(), is_word);
      if (has_words && length >= kShortestLoop && length >= kFewestRepeats * period)
        return "it repeats `" + printable(passage) + "` over and over";
    }
  }
  std::istringstream stream{std::string(text)};
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(lower(word));
  const std::set<std::string> different(words.begin(), words.end());
  if (words.size() >= kFewestWords &&
      static_cast<double>(different.size()) < kLeastVariety * static_cast<double>(words.size()))
    return "only " + std::to_string(different.size()) + " of its " + std::to_string(words.size()) +
           " words are different";
  return std::nullopt;
}

std::optional<std::string> judge_answer(const Answer& answer, std::string_view expect) {
  const bool blank =
      std::all_of(answer.text.begin(), answer.text.end(), [](unsigned char c) { return std::isspace(c) != 0; });
  const bool cut = answer.finish_reason == "length";
  if (blank) return cut ? "it was cut off before the answer began" : "it is empty";
  if (const auto problem = find_unprintable(answer.text)) return problem;
  if (const auto problem = find_degeneration(answer.text)) return problem;
  if (!expect.empty() && !contains_word(answer.text, expect))
    return "it does not contain `" + std::string(expect) + "`" + (cut ? ", and was cut off by max_tokens" : "");
  if (answer.finish_reason != "stop" && !cut)
    return answer.finish_reason.empty() ? "the server gave no finish_reason"
                                        : "its finish_reason is `" + printable(answer.finish_reason, 64) + "`";
  return std::nullopt;
}

}  // namespace tandem::health
