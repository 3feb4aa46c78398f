#include "runtime/common/error.h"

#include <algorithm>
#include <cstdint>

namespace tandem {

std::string_view error_kind_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::internal: return "internal";
    case ErrorKind::usage: return "usage";
    case ErrorKind::recipe: return "recipe";
    case ErrorKind::plan: return "plan";
    case ErrorKind::fetch: return "fetch";
    case ErrorKind::pack: return "pack";
    case ErrorKind::split: return "split";
    case ErrorKind::node: return "node";
    case ErrorKind::link: return "link";
    case ErrorKind::launch: return "launch";
    case ErrorKind::health: return "health";
    case ErrorKind::peer_lost: return "peer_lost";
    case ErrorKind::memory: return "memory";
    case ErrorKind::interrupted: return "interrupted";
  }
  return "internal";
}

int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::internal: return 1;
    case ErrorKind::usage:
    case ErrorKind::recipe:
    case ErrorKind::plan: return 2;
    case ErrorKind::fetch:
    case ErrorKind::pack:
    case ErrorKind::split: return 3;
    case ErrorKind::node:
    case ErrorKind::link: return 4;
    case ErrorKind::launch:
    case ErrorKind::health: return 5;
    case ErrorKind::peer_lost: return 6;
    case ErrorKind::memory: return 7;
    case ErrorKind::interrupted: return 130;
  }
  return 1;
}

Error::Error(ErrorKind kind, std::string what, std::string where, std::string fix)
    : std::runtime_error(std::move(what)), kind_(kind), where_(std::move(where)), fix_(std::move(fix)) {}

Error Error::at(const std::string& outer) const {
  return Error(kind_, what(), where_.empty() ? outer : outer + ": " + where_, fix_);
}

std::string Error::report() const {
  std::string text = "error: " + printable(what()) + "\n";
  if (!where_.empty()) text += "where: " + printable(where_) + "\n";
  if (!fix_.empty()) text += "fix:   " + printable(fix_) + "\n";
  return text;
}

namespace {

/// Bytes of the valid UTF-8 sequence at `at`, or 0.
size_t utf8_length(std::string_view s, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(s[i]); };
  const uint8_t lead = byte(at);
  const size_t length = lead < 0x80 ? 1 : lead >= 0xF0 && lead <= 0xF4 ? 4 : lead >= 0xE0 && lead < 0xF0 ? 3
                        : lead >= 0xC2 && lead < 0xE0 ? 2 : 0;
  if (length == 0 || at + length > s.size()) return 0;
  uint32_t code = length == 1 ? lead : lead & (0xFFu >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return 0;
    code = code << 6 | (byte(at + i) & 0x3F);
  }
  const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  return overlong || surrogate || code > 0x10FFFF ? 0 : length;
}

/// C1 controls, and the marks that reorder or hide text on a terminal.
bool is_deceptive(std::string_view sequence) {
  if (sequence.size() == 2) return static_cast<uint8_t>(sequence[0]) == 0xC2 && static_cast<uint8_t>(sequence[1]) < 0xA0;
  if (sequence.size() != 3 || static_cast<uint8_t>(sequence[0]) != 0xE2) return false;
  const int tail = static_cast<uint8_t>(sequence[1]) << 8 | static_cast<uint8_t>(sequence[2]);
  return (tail >= 0x808B && tail <= 0x808F) || (tail >= 0x80A8 && tail <= 0x80AE) || (tail >= 0x81A0 && tail <= 0x81AF);
}

}  // namespace

std::string printable(std::string_view text, size_t max_bytes) {
  static const char* kHex = "0123456789abcdef";
  std::string out;
  out.reserve(std::min(text.size(), max_bytes));
  for (size_t i = 0; i < text.size();) {
    if (out.size() >= max_bytes) return out + "...";
    const size_t length = utf8_length(text, i);
    const std::string_view sequence = text.substr(i, std::max<size_t>(length, 1));
    const auto first = static_cast<uint8_t>(text[i]);
    if (text[i] == '\n' || (length > 0 && first >= 0x20 && first != 0x7F && !is_deceptive(sequence))) {
      out += sequence;
    } else {
      for (const char c : sequence) {
        out += "\\x";
        out += kHex[static_cast<uint8_t>(c) >> 4];
        out += kHex[static_cast<uint8_t>(c) & 15];
      }
    }
    i += sequence.size();
  }
  return out;
}

std::string nearest_name(std::string_view given, const std::vector<std::string>& candidates) {
  // Edits are insertion, deletion, substitution and a swap of neighbours, the commonest slip of all.
  const auto distance = [&](const std::string& other) {
    const size_t width = other.size() + 1;
    std::vector<size_t> d((given.size() + 1) * width);
    for (size_t i = 0; i <= given.size(); ++i) {
      for (size_t j = 0; j <= other.size(); ++j) {
        size_t& cell = d[i * width + j];
        if (i == 0 || j == 0) {
          cell = i + j;
          continue;
        }
        const bool differ = given[i - 1] != other[j - 1];
        cell = std::min({d[(i - 1) * width + j] + 1, d[i * width + j - 1] + 1, d[(i - 1) * width + j - 1] + differ});
        if (i > 1 && j > 1 && given[i - 1] == other[j - 2] && given[i - 2] == other[j - 1])
          cell = std::min(cell, d[(i - 2) * width + j - 2] + 1);
      }
    }
    return d.back();
  };
  if (given.size() > 64) return "";
  std::string best;
  size_t best_distance = given.size() / 3 + 2;  // further than this and the guess would mislead
  for (const std::string& candidate : candidates) {
    const size_t d = distance(candidate);
    if (d < best_distance) {
      best = candidate;
      best_distance = d;
    }
  }
  return best;
}

}  // namespace tandem
