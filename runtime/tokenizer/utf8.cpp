#include "runtime/tokenizer/utf8.h"

#include "runtime/tokenizer/tokenizer.h"

namespace tandem {

Utf8Step utf8_step(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(at);
  if (lead < 0x80) return {1, true, false, lead};
  const size_t length = lead >= 0xC2 && lead <= 0xDF   ? 2
                        : lead >= 0xE0 && lead <= 0xEF ? 3
                        : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                       : 0;
  if (length == 0) return {};
  // The second byte's range excludes overlong forms, surrogates and codes beyond U+10FFFF.
  const uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  uint32_t code = lead & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if (at + i == text.size()) return {i, false, true, 0xFFFD};
    const uint8_t next = byte(at + i);
    if (next < (i == 1 ? low : 0x80) || next > (i == 1 ? high : 0xBF)) return {i, false, false, 0xFFFD};
    code = code << 6 | (next & 0x3F);
  }
  return {length, true, false, code};
}

void append_utf8(uint32_t code, std::string& out) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | code >> 6);
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | code >> 12);
    out += static_cast<char>(0x80 | (code >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | code >> 18);
    out += static_cast<char>(0x80 | (code >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (code >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  }
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Step step = utf8_step(bytes, at);
    if (step.valid)
      out.append(bytes, at, step.length);
    else
      out += "\xEF\xBF\xBD";
    at += step.length;
  }
  return out;
}

size_t incomplete_utf8_tail(std::string_view bytes) {
  const size_t window = bytes.size() < 3 ? bytes.size() : 3;
  for (size_t back = window; back >= 1; --back) {
    const size_t at = bytes.size() - back;
    const Utf8Step step = utf8_step(bytes, at);
    if (step.truncated && step.length == back) return back;
  }
  return 0;
}

}  // namespace tandem
