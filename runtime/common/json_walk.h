#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "runtime/common/error.h"

namespace tandem {

/// A scalar met by walk_json.
struct JsonScalar {
  enum class Kind { null, boolean, integer, number, string };

  Kind kind = Kind::null;
  bool boolean = false;
  int64_t integer = 0;    ///< kind integer; numbers past int64_t come as kind number
  double number = 0;      ///< kinds integer and number
  std::string_view text;  ///< kind string; valid during the call
};

/// Receives a document piece by piece, so that headers with 100,000 tensors never exist as a tree.
/// A path has one element a level: the key in an object, "" in an array.
class JsonVisitor {
 public:
  using Path = std::span<const std::string>;

  virtual ~JsonVisitor() = default;
  virtual void scalar(Path path, const JsonScalar& value) = 0;
  virtual void open(Path path, bool is_array) = 0;
  virtual void close(Path path, bool is_array) = 0;
};

/// Exceptions of the visitor pass through.
/// @throws Error  of `kind`: not JSON, or nested deeper than `max_depth`
void walk_json(std::string_view text, JsonVisitor& visitor, int max_depth, ErrorKind kind, const std::string& where);

}  // namespace tandem
