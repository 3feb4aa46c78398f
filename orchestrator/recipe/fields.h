#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

// The one table of every key that a recipe or a cluster file may have. The parser, --set, the JSON Schema, the
// did-you-mean answers and the tests of recipes/reference.yaml are all made from it.

enum class FieldType {
  // containers
  map,       ///< with the keys that the table lists below it
  free_map,  ///< with keys of the author's choice; the row "PATH.*" describes the values
  list,      ///< the row "PATH[]" describes the items
  // scalars
  text,         ///< one line or more of anything printable
  name,         ///< letters, digits, `.`, `_`, `-`, `/`-free, starting with a letter or digit
  choice,       ///< one of `choices`
  boolean,      ///< true, false
  integer,      ///< decimal digits
  number,       ///< decimal, with or without a fraction
  bytes,        ///< 2GiB, 220.6GB
  tokens,       ///< 262144, 256k
  bandwidth,    ///< 90Gbit/s
  duration,     ///< 20us, 15m
  date,         ///< 2026-10-28
  web_url,      ///< http:// or https://, no user, no password
  repo,         ///< org/name
  revision,     ///< branch, tag or commit
  base_file,    ///< ./base.yaml, in this file's folder or below
  pack_folder,  ///< a folder; in a recipe relative to it, in its folder or below
  folder,       ///< an absolute folder
  program,      ///< an absolute path of a program
  address,      ///< host name, IPv4 or IPv6 address
  http_path,    ///< /health
  argument,     ///< one argument of a command line, with placeholders
  env_value,    ///< of a variable in the cluster file
  device,       ///< cpu, cuda:0
};

/// What people call a type: "a size such as 2GiB".
std::string_view type_description(FieldType type);

enum class Document { recipe, cluster };

/// Which engines a key belongs to: one that is given for the other kind would do nothing, which is an error.
enum class ForEngine { any, tandem, command };

struct Field {
  std::string_view path;  ///< "engine.mtp.depth"; items of lists "measurements[].value"; free keys "engine.env.*"
  FieldType type;
  std::string_view doc;            ///< one or two sentences
  std::string_view fallback = "";  ///< the default, as one would write it; "": none
  bool required = false;           ///< wherever its parent is given
  double min = 0, max = 0;         ///< of numbers, sizes (bytes), tokens, lists (items); both 0: no bounds
  std::vector<std::string_view> choices = {};
  bool recipe_only = false;  ///< not in a cluster's `overrides`, not by --set: it says what the recipe is
  ForEngine engine = ForEngine::any;

  bool is_container() const { return type == FieldType::map || type == FieldType::free_map || type == FieldType::list; }
};

/// Parents stand before their children; the order is that of reference.yaml and of `show`.
const std::vector<Field>& fields_of(Document document);

/// The row of a concrete or a table path: "probes[2].prompt" and "probes[].prompt" are the same. Null: no such key.
const Field* find_field(Document document, std::string_view path);

/// The keys directly below a map's path ("" for the root), in table order.
std::vector<std::string> keys_below(Document document, std::string_view path);

/// A fix for the unknown key `key` in the map at `path`: the nearest key there, else the same key elsewhere in the
/// table, else the keys that exist there.
std::string suggest_key(Document document, std::string_view path, std::string_view key);

/// "health.probes[2].prompt" -> "health.probes[].prompt".
std::string table_path(std::string_view path);

}  // namespace tandem
