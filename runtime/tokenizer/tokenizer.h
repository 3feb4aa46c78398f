#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/prompt_text.h"

namespace tandem {

/// Byte-level BPE as tokenizer.json describes it (Hugging Face tokenizers). Immutable after load: safe to share
/// between threads.
class Tokenizer {
 public:
  /// Reads tokenizer.json from a pack folder.
  /// @throws Error  kind `pack`, when the file is missing, too large, malformed, or asks for a feature that is not
  ///                byte-level BPE (it is named)
  static Tokenizer load(const std::filesystem::path& folder);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Added tokens ("<role>", "<think>") are matched only where every byte of their spelling is trusted. Invalid UTF-8
  /// becomes U+FFFD first. Time grows as n log n with the text, whatever it holds.
  std::vector<int32_t> encode(const PromptText& prompt) const;
  /// Text in which added tokens are never matched: words of users.
  std::vector<int32_t> encode_untrusted(std::string_view text) const { return encode(PromptText::untrusted(text)); }
  /// Text in which every added token is matched, as Hugging Face tokenizers do.
  std::vector<int32_t> encode_trusted(std::string_view text) const { return encode(PromptText::trusted(text)); }

  /// The bytes a token stands for: one token may hold part of a UTF-8 character. "" for an id that does not exist.
  /// Added tokens give their spelling.
  std::string_view token_bytes(int32_t id) const;
  /// All tokens' bytes, with invalid UTF-8 turned into U+FFFD.
  std::string decode(std::span<const int32_t> ids) const;

  /// Largest id + 1. The model's head may have more rows: those must never be sampled.
  int32_t vocabulary_size() const;
  /// Added tokens: they have a meaning beyond their spelling. `special` ones are never part of an answer's text.
  bool is_added(int32_t id) const;
  bool is_special(int32_t id) const;
  /// The id of exactly this token ("<|role_end|>"), if there is one.
  std::optional<int32_t> find(std::string_view token) const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

/// Replaces every byte that is not part of valid UTF-8 as the Unicode standard advises: one U+FFFD for each maximal
/// ill-formed subsequence.
std::string replace_invalid_utf8(std::string_view bytes);

/// How many bytes at the end of `bytes` begin a UTF-8 character that is not complete yet (0 to 3): a stream holds them
/// back until the rest arrives.
size_t incomplete_utf8_tail(std::string_view bytes);

}  // namespace tandem
