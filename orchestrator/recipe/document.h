#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/recipe/source_text.h"

namespace tandem {

/// Which layer a value was written in.
enum class Layer { recipe, cluster, set };

struct Entry;

/// A YAML value with the place it was written at. Scalars keep their text exactly as written: what it means is decided
/// by the field's type, never by YAML's guesses.
struct Value {
  enum class Kind { null, scalar, map, list };

  Kind kind = Kind::null;
  Place place;
  Layer layer = Layer::recipe;
  std::string text;            ///< scalar
  bool quoted = false;         ///< scalar in quotes, or a block scalar
  std::vector<Entry> entries;  ///< map, keys unique
  std::vector<Value> items;    ///< list

  const Value* find(std::string_view key) const;
  Value* find(std::string_view key);
  void erase(std::string_view key);
};

struct Entry {
  std::string key;
  Place place;
  Value value;
};

/// Parses one YAML document of maps, lists and scalars. Anchors, aliases, tags, merge keys, further documents, keys
/// that are not plain words, duplicate keys, and nesting or sizes beyond any recipe are problems.
/// @return the root; only to be used when no problem was added
Value parse_document(const SourceText& source, Layer layer, Problems& problems);

/// Lays `over` on `base`: maps merge key by key at every depth, anything else replaces. Where the two name different
/// members of a group of which only one may be given (pack.repo, pack.url, pack.path), the one in `over` wins.
void merge_into(Value& base, const Value& over);

}  // namespace tandem
