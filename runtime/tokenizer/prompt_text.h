#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

/// Text that remembers which of its bytes came from strangers. A prompt mixes the template's own words, which may spell
/// control tokens ("<|role_end|>"), with the words of users, which must never become one.
class PromptText {
 public:
  PromptText() = default;
  static PromptText trusted(std::string_view text) { return PromptText(text, false); }
  static PromptText untrusted(std::string_view text) { return PromptText(text, true); }

  const std::string& text() const { return text_; }
  size_t size() const { return text_.size(); }
  bool empty() const { return text_.empty(); }

  PromptText& operator+=(const PromptText& other);
  /// Bytes [begin, begin + length), with their marks.
  PromptText substr(size_t begin, size_t length = std::string::npos) const;
  /// True when any byte of [begin, end) came from a stranger.
  bool is_untrusted(size_t begin, size_t end) const;
  bool is_untrusted() const { return !untrusted_.empty(); }

  struct Range {
    size_t begin, end;  // bytes, half-open
    bool operator==(const Range&) const = default;
  };
  const std::vector<Range>& untrusted_ranges() const { return untrusted_; }

 private:
  PromptText(std::string_view text, bool untrusted);

  std::string text_;
  std::vector<Range> untrusted_;  // sorted, disjoint, not adjacent, not empty
};

}  // namespace tandem
