#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/recipe/document.h"
#include "orchestrator/recipe/fields.h"

namespace tandem {

/// Typed access to a checked tree by the table's paths; what nobody wrote has the table's default.
class Reader {
 public:
  Reader(const Value& root, Document document, std::string prefix = "")
      : root_(root), document_(document), prefix_(std::move(prefix)) {}

  const Value* find(std::string_view path) const;
  bool has(std::string_view path) const { return find(path) != nullptr; }
  /// Where `path` was written, for messages; where its nearest parent was when nobody wrote it.
  std::string where(std::string_view path) const;

  std::string text(std::string_view path) const;  ///< "" when there is neither value nor default
  bool boolean(std::string_view path) const { return text(path) == "true"; }
  int64_t integer(std::string_view path) const;  ///< 0 when there is neither value nor default
  double number(std::string_view path) const;
  std::optional<double> optional_number(std::string_view path) const;
  std::optional<int64_t> optional_integer(std::string_view path) const;
  int64_t bytes(std::string_view path) const;
  int64_t tokens(std::string_view path) const;
  int64_t bandwidth(std::string_view path) const;
  std::chrono::nanoseconds duration(std::string_view path) const;

  /// One reader for each item of a list of maps.
  std::vector<Reader> items(std::string_view path) const;
  std::vector<std::string> texts(std::string_view path) const;
  std::vector<std::string> places(std::string_view path) const;  ///< of a list's items or a free map's values
  std::map<std::string, std::string> free_map(std::string_view path) const;

 private:
  std::string full(std::string_view path) const;

  const Value& root_;
  Document document_;
  std::string prefix_;  // "health.probes[1]"
};

}  // namespace tandem
