#include "runtime/chat/text_functions.h"

#include <locale.h>
#include <clocale>
#include <cwctype>

#include "runtime/tokenizer/utf8.h"

namespace tandem::jinja {
namespace {

/// Python's str.isspace for one character.
bool is_space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

/// Case by Unicode's simple mappings, whatever the process's locale is.
locale_t unicode_locale() {
  static const locale_t locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  return locale;
}
uint32_t to_upper(uint32_t c) {
  if (c < 0x80) return c >= 'a' && c <= 'z' ? c - 32 : c;
  return unicode_locale() ? towupper_l(static_cast<wint_t>(c), unicode_locale()) : c;
}
uint32_t to_lower(uint32_t c) {
  if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + 32 : c;
  return unicode_locale() ? towlower_l(static_cast<wint_t>(c), unicode_locale()) : c;
}
bool is_cased(uint32_t c) {
  return to_upper(c) != c || to_lower(c) != c;
}

template <typename Visit>
void each_character(std::string_view text, Visit visit) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    visit(step.code, at, step.length);
    at += step.length;
  }
}

}  // namespace

PromptText derived(std::string_view made, const PromptText& source) {
  return source.is_untrusted() ? PromptText::untrusted(made) : PromptText::trusted(made);
}

PromptText strip(const PromptText& text, bool left, bool right, std::string_view characters) {
  const auto goes = [&](uint32_t code, size_t at, size_t length) {
    return characters.empty() ? is_space(code)
                              : characters.find(text.text().substr(at, length)) != std::string_view::npos;
  };
  size_t begin = text.size(), end = 0;
  each_character(text.text(), [&](uint32_t code, size_t at, size_t length) {
    if (goes(code, at, length)) return;
    begin = std::min(begin, at);
    end = at + length;
  });
  if (begin >= end) return {};  // nothing but what is stripped
  if (!left) begin = 0;
  if (!right) end = text.size();
  return text.substr(begin, end - begin);
}

PromptText replace(const PromptText& text, const PromptText& from, const PromptText& to, int64_t count,
                   Budget& budget) {
  PromptText out;
  const std::string& bytes = text.text();
  size_t at = 0;
  const auto add = [&](const PromptText& part) {
    budget.step();
    budget.charge(part.size());
    out += part;
  };
  if (from.empty()) {  // before every character, and at the end
    for (const size_t offset : character_offsets(bytes)) {
      if (count == 0) break;
      --count;
      add(text.substr(at, offset - at));
      add(to);
      at = offset;
    }
  } else {
    for (size_t hit; count != 0 && (hit = bytes.find(from.text(), at)) != std::string::npos; --count) {
      add(text.substr(at, hit - at));
      add(to);
      at = hit + from.size();
    }
  }
  add(text.substr(at));
  return out;
}

List split(const PromptText& text, std::string_view separator, int64_t limit, bool from_right, Budget& budget) {
  const std::string& bytes = text.text();
  std::vector<PromptText::Range> parts;
  if (separator.empty()) {
    size_t begin = std::string::npos;
    each_character(bytes, [&](uint32_t code, size_t at, size_t) {
      if (is_space(code)) {
        if (begin != std::string::npos) parts.push_back({begin, at});
        begin = std::string::npos;
      } else if (begin == std::string::npos) {
        begin = at;
      }
    });
    if (begin != std::string::npos) parts.push_back({begin, bytes.size()});
  } else {
    size_t begin = 0;
    for (size_t hit; (hit = bytes.find(separator, begin)) != std::string::npos; begin = hit + separator.size())
      parts.push_back({begin, hit});
    parts.push_back({begin, bytes.size()});
  }
  if (limit >= 0 && static_cast<int64_t>(parts.size()) > limit + 1) {  // join what lies beyond the limit again
    const size_t keep = static_cast<size_t>(limit);
    if (from_right) {
      const size_t joined = parts.size() - keep - 1;
      parts[joined].begin = separator.empty() ? 0 : parts.front().begin;
      parts.erase(parts.begin(), parts.begin() + static_cast<long>(joined));
    } else {
      parts[keep].end = separator.empty() ? bytes.size() : parts.back().end;
      parts.resize(keep + 1);
    }
  }
  budget.charge_items(parts.size() * 4);
  List list;
  for (const auto& part : parts) {
    budget.charge(part.end - part.begin);
    list.items.emplace_back(text.substr(part.begin, part.end - part.begin));
  }
  return list;
}

PromptText change_case(const PromptText& text, Case to) {
  std::string out;
  bool first = true, inside_word = false;
  each_character(text.text(), [&](uint32_t code, size_t, size_t) {
    const bool upper = to == Case::upper || (to == Case::title && !inside_word) || (to == Case::capitalize && first);
    append_utf8(upper ? to_upper(code) : to_lower(code), out);
    inside_word = is_cased(code);
    first = false;
  });
  return derived(out, text);
}

namespace {
bool all_cased_as(std::string_view text, bool upper) {
  bool any = false, all = true;
  each_character(text, [&](uint32_t code, size_t, size_t) {
    if (!is_cased(code)) return;
    any = true;
    all = all && (upper ? to_upper(code) : to_lower(code)) == code;
  });
  return any && all;
}
}  // namespace

bool is_upper(std::string_view text) {
  return all_cased_as(text, true);
}
bool is_lower(std::string_view text) {
  return all_cased_as(text, false);
}

PromptText indent(const PromptText& text, const PromptText& prefix, bool first, bool blank, Budget& budget) {
  PromptText out;
  size_t at = 0;
  for (bool is_first = true; at < text.size() || is_first; is_first = false) {
    const size_t newline = text.text().find('\n', at);
    const size_t end = newline == std::string::npos ? text.size() : newline + 1;
    const bool is_blank = end - at <= (newline == std::string::npos ? 0u : 1u);
    budget.step();
    if ((is_first ? first : true) && (blank || !is_blank)) {
      budget.charge(prefix.size());
      out += prefix;
    }
    budget.charge(end - at);
    out += text.substr(at, end - at);
    at = end;
  }
  return out;
}

PromptText escape_html(const PromptText& text, Budget& budget) {
  std::string out;
  for (const char c : text.text()) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  budget.charge(out.size());
  return derived(out, text);
}

}  // namespace tandem::jinja
