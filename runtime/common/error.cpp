#include "runtime/common/error.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

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
  const auto distance = [&](const std::string& other) {
    std::vector<size_t> row(other.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 1; i <= given.size(); ++i) {
      size_t diagonal = row[0];
      row[0] = i;
      for (size_t j = 1; j <= other.size(); ++j) {
        const size_t substituted = diagonal + (given[i - 1] != other[j - 1]);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
      }
    }
    return row.back();
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
