#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/common/error.h"

namespace tandem {

/// A spot in a recipe, a cluster file, or an override. Lines and columns count from 1, columns in characters.
struct Place {
  std::shared_ptr<const std::string> file;  ///< as it is shown; for overrides "--set engine.context"
  int line = 0;                             ///< 0: the whole file, or an override
  int column = 0;

  /// "recipes/x.yaml:14:20", and with a path "recipes/x.yaml:14:20 (engine.context)".
  std::string text(std::string_view path = {}) const;
};

/// Problems found so far. Reading goes on after most of them, so that one run of `validate` shows them all.
class Problems {
 public:
  void add(std::string what, std::string where, std::string fix);
  void add(const Error& error);
  bool empty() const { return errors_.empty(); }
  bool full() const { return errors_.size() >= kMost; }
  const std::vector<Error>& errors() const { return errors_; }

 private:
  static constexpr size_t kMost = 50;  // a file of garbage gets a page of errors, not a book
  std::vector<Error> errors_;
};

/// printable(), and newlines too: for texts quoted inside a message's line.
std::string one_line(std::string_view text, size_t max_bytes = 4096);

constexpr int64_t kMaxRecipeBytes = 1 << 20;

/// Text that YAML may be read from: valid UTF-8 without control characters, "\n" line ends, no byte order mark.
struct SourceText {
  std::shared_ptr<const std::string> file;
  std::string text;
  std::vector<std::string> notes;  ///< "Windows line ends were accepted"
};

/// Checks the bytes and normalises them. Nothing that a terminal or a reviewer would not see gets through: control
/// characters, text-direction overrides, tabs that indent.
/// @return the text; problems are added, and then the text must not be parsed
SourceText check_source(std::string_view bytes, const std::string& shown_name, Problems& problems);

}  // namespace tandem
