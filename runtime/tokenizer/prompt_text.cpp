#include "runtime/tokenizer/prompt_text.h"

#include <algorithm>

namespace tandem {

PromptText::PromptText(std::string_view text, bool untrusted) : text_(text) {
  if (untrusted && !text.empty()) untrusted_.push_back({0, text.size()});
}

PromptText& PromptText::operator+=(const PromptText& other) {
  const size_t shift = text_.size();
  const size_t count = other.untrusted_.size();  // `other` may be *this
  text_.append(other.text_.data(), other.text_.size());
  for (size_t i = 0; i < count; ++i) {
    const Range moved{other.untrusted_[i].begin + shift, other.untrusted_[i].end + shift};
    if (!untrusted_.empty() && untrusted_.back().end == moved.begin) {
      untrusted_.back().end = moved.end;
    } else {
      untrusted_.push_back(moved);
    }
  }
  return *this;
}

PromptText PromptText::substr(size_t begin, size_t length) const {
  PromptText part;
  if (begin >= text_.size()) return part;
  const size_t end = begin + std::min(length, text_.size() - begin);
  part.text_ = text_.substr(begin, end - begin);
  for (const Range& range : untrusted_) {
    const Range cut{std::max(range.begin, begin), std::min(range.end, end)};
    if (cut.begin < cut.end) part.untrusted_.push_back({cut.begin - begin, cut.end - begin});
  }
  return part;
}

bool PromptText::is_untrusted(size_t begin, size_t end) const {
  const auto first = std::partition_point(untrusted_.begin(), untrusted_.end(),
                                          [&](const Range& range) { return range.end <= begin; });
  return first != untrusted_.end() && first->begin < end;
}

}  // namespace tandem
