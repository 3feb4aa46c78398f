#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tandem {

/// One step through bytes that may or may not be UTF-8.
struct Utf8Step {
  size_t length = 1;  ///< bytes of the character, or of the maximal ill-formed subsequence
  bool valid = false;
  bool truncated = false;  ///< not valid, but a proper beginning of a character that the text's end cuts off
  uint32_t code = 0xFFFD;
};

/// Reads the character at `at` (< text.size()), as the Unicode standard's table 3-7 defines well-formed UTF-8.
Utf8Step utf8_step(std::string_view text, size_t at);

/// Appends `code` (a Unicode scalar value) to `out`.
void append_utf8(uint32_t code, std::string& out);

}  // namespace tandem
