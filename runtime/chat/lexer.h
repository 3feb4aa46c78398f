#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tandem::jinja {

/// A template that is not well formed: what, and its line.
struct SyntaxError {
  std::string what;
  int line;
};

struct Token {
  enum class Kind {
    data,
    variable_begin,
    variable_end,
    block_begin,
    block_end,
    name,
    string,
    integer,
    real,
    op,
    end
  } kind;
  std::string text;  // of a string: its value; of an op: its spelling
  int line;
};

/// Source -> tokens, with Jinja's white-space rules as chat templates are rendered with: trim_blocks (a block or
/// comment swallows the newline after it), lstrip_blocks (and the blanks before it, if it is the first on its line),
/// "-" swallows all white space on its side, "+" keeps it, and the template's last newline is dropped.
/// @throws SyntaxError
std::vector<Token> tokenize(std::string_view source);

}  // namespace tandem::jinja
