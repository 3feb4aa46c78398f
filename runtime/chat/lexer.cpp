#include "runtime/chat/lexer.h"

#include <algorithm>
#include <cctype>

#include "runtime/tokenizer/utf8.h"

namespace tandem::jinja {
namespace {

constexpr std::string_view kBlank = " \t\n\r\f\v";

std::string unix_newlines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r')
      text += source[i];
    else if (i + 1 == source.size() || source[i + 1] != '\n')
      text += '\n';
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

bool is_name_start(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) || c == '_';
}
bool is_digit(char c) {
  return std::isdigit(static_cast<unsigned char>(c));
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(unix_newlines(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      const size_t open = next_tag();
      const size_t text_begin = at_;
      if (open == std::string::npos) {
        data(text_begin, source_.size());
        at_ = source_.size();
        break;
      }
      const char kind = source_[open + 1];
      const char sign = open + 2 < source_.size() ? source_[open + 2] : '\0';
      size_t text_end = open;
      if (sign == '-') {
        while (text_end > text_begin && kBlank.find(source_[text_end - 1]) != std::string_view::npos) --text_end;
      } else if (sign != '+' && kind != '{') {
        text_end = without_indentation(text_begin, open);
      }
      data(text_begin, text_end);
      advance(open + 2 + (sign == '-' || sign == '+'));
      if (kind == '#')
        comment();
      else if (kind == '%' && raw_follows())
        raw();
      else
        tag(kind == '{');
    }
    push(Token::Kind::end, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void error(const std::string& what) const { throw SyntaxError{what, line_}; }

  void push(Token::Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  void data(size_t begin, size_t end) {
    if (end > begin) push(Token::Kind::data, source_.substr(begin, end - begin));
  }

  void advance(size_t to) {
    line_ += static_cast<int>(
        std::count(source_.begin() + static_cast<long>(at_), source_.begin() + static_cast<long>(to), '\n'));
    at_ = to;
  }

  size_t next_tag() const {
    for (size_t i = at_; (i = source_.find('{', i)) != std::string::npos; ++i)
      if (i + 1 < source_.size() && (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#')) return i;
    return std::string::npos;
  }

  /// lstrip_blocks: where the text before a tag ends when only blanks stand between it and its line's start.
  size_t without_indentation(size_t text_begin, size_t open) const {
    size_t begin = open;
    while (begin > text_begin && (source_[begin - 1] == ' ' || source_[begin - 1] == '\t')) --begin;
    const bool at_line_start = begin == 0 || source_[begin - 1] == '\n';
    return at_line_start ? begin : open;
  }

  /// Steps over a tag's end, "-%}" or "%}" or "+%}", and the white space it swallows.
  void close(size_t length, char sign, bool swallows_newline) {
    advance(at_ + length);
    size_t to = at_;
    if (sign == '-') {
      while (to < source_.size() && kBlank.find(source_[to]) != std::string_view::npos) ++to;
    } else if (sign != '+' && swallows_newline && to < source_.size() && source_[to] == '\n') {
      ++to;
    }
    advance(to);
  }

  void comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) error("a comment is not closed with #}");
    const char before = end > at_ ? source_[end - 1] : '\0';
    advance(end);
    close(2, before, true);
  }

  /// True at "raw %}" (after "{%").
  bool raw_follows() const {
    size_t i = source_.find_first_not_of(kBlank, at_);
    return i != std::string::npos && source_.compare(i, 3, "raw") == 0 && i + 3 < source_.size() &&
           (kBlank.find(source_[i + 3]) != std::string_view::npos || source_[i + 3] == '-' || source_[i + 3] == '%' ||
            source_[i + 3] == '+');
  }

  void raw() {
    size_t end = source_.find("%}", at_);
    if (end == std::string::npos) error("{% raw is not closed with %}");
    const char sign = source_[end - 1];
    advance(end);
    close(2, sign, false);  // unlike other tags, this one keeps the newline after it
    for (size_t i = at_; (i = source_.find("{%", i)) != std::string::npos; i += 2) {
      size_t word = i + 2;
      const char open_sign = word < source_.size() ? source_[word] : '\0';
      if (open_sign == '-' || open_sign == '+') ++word;
      word = source_.find_first_not_of(kBlank, word);
      if (word == std::string::npos || source_.compare(word, 6, "endraw") != 0) continue;
      const size_t close_at = source_.find("%}", word);
      if (close_at == std::string::npos) break;
      size_t text_end = i;
      if (open_sign == '-')
        while (text_end > at_ && kBlank.find(source_[text_end - 1]) != std::string_view::npos) --text_end;
      else if (open_sign != '+')
        text_end = without_indentation(at_, i);
      data(at_, text_end);
      const char close_sign = source_[close_at - 1];
      advance(close_at);
      close(2, close_sign, true);
      return;
    }
    error("{% raw %} is not closed with {% endraw %}");
  }

  void tag(bool variable) {
    push(variable ? Token::Kind::variable_begin : Token::Kind::block_begin, "");
    const std::string end = variable ? "}}" : "%}";
    int braces = 0;  // "}}" may also close two dict displays
    for (;;) {
      const size_t next = source_.find_first_not_of(kBlank, at_);
      if (next == std::string::npos) error("a tag is not closed with " + end);
      advance(next);
      const char c = source_[at_];
      const bool signed_end = (c == '-' || c == '+') && source_.compare(at_ + 1, 2, end) == 0;
      if (braces == 0 && (signed_end || source_.compare(at_, 2, end) == 0)) {
        push(variable ? Token::Kind::variable_end : Token::Kind::block_end, "");
        return close(signed_end ? 3 : 2, signed_end ? c : '\0', !variable);
      }
      if (c == '{') ++braces;
      if (c == '}') braces = std::max(0, braces - 1);
      if (c == '"' || c == '\'')
        string(c);
      else if (is_digit(c))
        number();
      else if (is_name_start(c))
        name();
      else
        operation();
    }
  }

  void name() {
    size_t to = at_;
    while (to < source_.size() && (is_name_start(source_[to]) || is_digit(source_[to]))) ++to;
    push(Token::Kind::name, source_.substr(at_, to - at_));
    advance(to);
  }

  void number() {
    size_t to = at_;
    bool real = false;
    const auto digits = [&] {
      while (to < source_.size() && (is_digit(source_[to]) || source_[to] == '_')) ++to;
    };
    digits();
    if (to + 1 < source_.size() && source_[to] == '.' && is_digit(source_[to + 1])) real = true, ++to, digits();
    if (to < source_.size() && (source_[to] == 'e' || source_[to] == 'E')) {
      size_t exponent = to + 1;
      if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
      if (exponent < source_.size() && is_digit(source_[exponent])) real = true, to = exponent, digits();
    }
    std::string text = source_.substr(at_, to - at_);
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    push(real ? Token::Kind::real : Token::Kind::integer, std::move(text));
    advance(to);
  }

  uint32_t hex(size_t at, size_t digits) const {
    uint32_t code = 0;
    for (size_t i = 0; i < digits; ++i) {
      if (at + i >= source_.size() || !std::isxdigit(static_cast<unsigned char>(source_[at + i])))
        error("a \\x, \\u or \\U escape lacks its digits");
      const char c = static_cast<char>(std::tolower(source_[at + i]));
      code = code << 4 | static_cast<uint32_t>(is_digit(c) ? c - '0' : c - 'a' + 10);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) error("an escape names no character");
    return code;
  }

  void string(char quote) {
    std::string value;
    size_t i = at_ + 1;
    for (;; ++i) {
      if (i >= source_.size()) error("a string is not closed");
      if (source_[i] == quote) break;
      if (source_[i] != '\\') {
        value += source_[i];
        continue;
      }
      if (++i >= source_.size()) error("a string is not closed");
      switch (source_[i]) {
        case 'n':
          value += '\n';
          break;
        case 't':
          value += '\t';
          break;
        case 'r':
          value += '\r';
          break;
        case 'b':
          value += '\b';
          break;
        case 'f':
          value += '\f';
          break;
        case 'v':
          value += '\v';
          break;
        case 'a':
          value += '\a';
          break;
        case '0':
          value += '\0';
          break;
        case '\n':
          break;
        case '\\':
        case '\'':
        case '"':
          value += source_[i];
          break;
        case 'x':
          append_utf8(hex(i + 1, 2), value), i += 2;
          break;
        case 'u':
          append_utf8(hex(i + 1, 4), value), i += 4;
          break;
        case 'U':
          append_utf8(hex(i + 1, 8), value), i += 8;
          break;
        default:
          value += '\\', value += source_[i];
      }
    }
    push(Token::Kind::string, std::move(value));
    advance(i + 1);
  }

  void operation() {
    for (const std::string_view op : {"**", "//", "==", "!=", "<=", ">="}) {
      if (source_.compare(at_, 2, op) == 0) {
        push(Token::Kind::op, std::string(op));
        return advance(at_ + 2);
      }
    }
    if (std::string_view("+-*/%~<>=()[]{}.,:|").find(source_[at_]) == std::string_view::npos)
      error(std::string("unexpected character '") + source_[at_] + "'");
    push(Token::Kind::op, std::string(1, source_[at_]));
    advance(at_ + 1);
  }

  const std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  return Lexer(source).run();
}

}  // namespace tandem::jinja
