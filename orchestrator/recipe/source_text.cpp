#include "orchestrator/recipe/source_text.h"

#include <cstdint>
#include <cstdio>
#include <optional>

namespace tandem {
namespace {

struct Character {
  uint32_t code = 0;
  size_t bytes = 1;
};

/// The character at `at`, or nothing for invalid UTF-8: overlong forms, surrogates, beyond U+10FFFF, cut off.
std::optional<Character> decode(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return Character{first, 1};
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || at + length > text.size()) return std::nullopt;
  uint32_t code = first & (0xFF >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return std::nullopt;
    code = code << 6 | (byte(i) & 0x3F);
  }
  const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  if (overlong || (code >= 0xD800 && code <= 0xDFFF) || code > 0x10FFFF) return std::nullopt;
  return Character{code, length};
}

/// Characters that show nothing or change how the rest of the line is shown.
bool is_invisible(uint32_t code) {
  return code == 0x7F || (code >= 0x80 && code < 0xA0) || (code >= 0x200B && code <= 0x200F) ||
         (code >= 0x2028 && code <= 0x202E) || (code >= 0x2060 && code <= 0x206F) || code == 0xFEFF || code == 0xFFFE ||
         code == 0xFFFF;
}

std::string code_point(uint32_t code) {
  char text[16];
  std::snprintf(text, sizeof text, "U+%04X", static_cast<unsigned>(code));
  return text;
}

}  // namespace

std::string Place::text(std::string_view path) const {
  std::string result = file ? *file : std::string();
  if (line > 0) result += ":" + std::to_string(line) + ":" + std::to_string(column);
  if (!path.empty()) result += " (" + std::string(path) + ")";
  return result;
}

std::string one_line(std::string_view text, size_t max_bytes) {
  std::string result;
  for (char c : printable(text, max_bytes)) c == '\n' ? result += "\\n" : result += c;
  return result;
}

void Problems::add(std::string what, std::string where, std::string fix) {
  if (!full()) errors_.emplace_back(ErrorKind::recipe, std::move(what), std::move(where), std::move(fix));
}

void Problems::add(const Error& error) {
  if (!full()) errors_.push_back(error);
}

SourceText check_source(std::string_view bytes, const std::string& shown_name, Problems& problems) {
  SourceText source;
  source.file = std::make_shared<const std::string>(printable(shown_name));
  if (bytes.starts_with("\xEF\xBB\xBF")) {
    bytes.remove_prefix(3);
    source.notes.push_back("the file starts with a byte order mark, which is ignored");
  }
  Place place{source.file, 1, 1};
  bool indenting = true, line_ends_noted = false;
  source.text.reserve(bytes.size());
  for (size_t at = 0; at < bytes.size() && !problems.full();) {
    const std::optional<Character> character = decode(bytes, at);
    if (!character) {
      problems.add("the text is not valid UTF-8", place.text(), "save the file as UTF-8");
      return source;  // what follows would be misread
    }
    const uint32_t code = character->code;
    if (code == '\r' && at + 1 < bytes.size() && bytes[at + 1] == '\n') {
      if (!line_ends_noted) source.notes.push_back("Windows line ends (CRLF) are read as plain ones");
      line_ends_noted = true;
      ++at;
      continue;
    }
    if (code == '\t' && indenting) {
      problems.add("a tab indents this line", place.text(), "indent with spaces");
    } else if ((code < 0x20 && code != '\n' && code != '\t') || is_invisible(code)) {
      problems.add("the control character " + code_point(code) + " does not belong into a recipe", place.text(),
                   "remove it");
    }
    source.text.append(bytes.substr(at, character->bytes));
    at += character->bytes;
    ++place.column;
    if (code == '\n') {
      ++place.line;
      place.column = 1;
      indenting = true;
    } else if (code != ' ' && code != '\t') {
      indenting = false;
    }
  }
  return source;
}

}  // namespace tandem
