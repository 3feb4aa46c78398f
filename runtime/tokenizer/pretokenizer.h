#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace tandem {

/// Cuts text into the words that BPE works on: each match of the pack's pattern is a word, and so is each run of text
/// between two matches (the "Isolated" behaviour of Hugging Face tokenizers).
class Pretokenizer {
 public:
  /// @param pattern  in the pack's regular-expression dialect (Oniguruma), whose common part with PCRE2 all published
  ///                 byte-level tokenizers use
  /// @throws Error   kind `pack`, when the pattern does not compile
  Pretokenizer(const std::string& pattern, const std::string& where);
  Pretokenizer(Pretokenizer&&) noexcept;
  ~Pretokenizer();

  /// Calls `emit` for each word of `text`, which must be valid UTF-8, in order; the words join to `text`.
  /// @throws Error  kind `pack`, when the pattern needs more steps than a sane one does (it comes from a stranger)
  void split(std::string_view text, const std::function<void(std::string_view word)>& emit) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
