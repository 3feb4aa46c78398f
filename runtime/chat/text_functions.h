#pragma once

// Python's string methods on text that remembers its trust: parts of a text keep their marks; text that was made anew
// from an untrusted one is untrusted as a whole.

#include <string_view>

#include "runtime/chat/value.h"

namespace tandem::jinja {

/// A result made from `source`: trusted if that is.
PromptText derived(std::string_view made, const PromptText& source);

/// str.strip and its one-sided forms. `characters` empty: white space.
PromptText strip(const PromptText& text, bool left, bool right, std::string_view characters = "");
PromptText replace(const PromptText& text, const PromptText& from, const PromptText& to, int64_t count, Budget& budget);
/// str.split. `separator` empty: runs of white space. `limit` < 0: all.
List split(const PromptText& text, std::string_view separator, int64_t limit, bool from_right, Budget& budget);

enum class Case { upper, lower, title, capitalize };
PromptText change_case(const PromptText& text, Case to);
bool is_upper(std::string_view text);
bool is_lower(std::string_view text);

/// text | indent(width, first, blank).
PromptText indent(const PromptText& text, const PromptText& prefix, bool first, bool blank, Budget& budget);
/// text | escape: & < > ' " as HTML.
PromptText escape_html(const PromptText& text, Budget& budget);

}  // namespace tandem::jinja
