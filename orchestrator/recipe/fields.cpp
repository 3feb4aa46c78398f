#include "orchestrator/recipe/fields.h"

#include <map>

#include "orchestrator/recipe/field_rows.h"
#include "runtime/common/error.h"

namespace tandem {
namespace {

struct Table {
  std::vector<Field> rows;
  std::map<std::string, size_t, std::less<>> by_path;

  explicit Table(std::vector<Field> fields) : rows(std::move(fields)) {
    for (size_t i = 0; i < rows.size(); ++i) by_path.emplace(rows[i].path, i);
  }
};

const Table& table_of(Document document) {
  static const Table recipe(recipe_rows());
  static const Table cluster(cluster_rows());
  return document == Document::recipe ? recipe : cluster;
}

std::string_view leaf(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? path : path.substr(dot + 1);
}

std::string_view parent(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}

}  // namespace

std::string_view type_description(FieldType type) {
  switch (type) {
    case FieldType::map:
    case FieldType::free_map:
      return "a map of keys and values";
    case FieldType::list:
      return "a list";
    case FieldType::text:
      return "a text";
    case FieldType::name:
      return "a name of letters, digits, `.`, `_` and `-`";
    case FieldType::choice:
      return "one of a few words";
    case FieldType::boolean:
      return "true or false";
    case FieldType::integer:
      return "a whole number";
    case FieldType::number:
      return "a number";
    case FieldType::bytes:
      return "a size such as 2GiB or 220.6GB";
    case FieldType::tokens:
      return "a number of tokens such as 262144 or 256k";
    case FieldType::bandwidth:
      return "a bandwidth such as 90Gbit/s";
    case FieldType::duration:
      return "a duration such as 20us, 30s or 15m";
    case FieldType::date:
      return "a date such as 2026-10-28";
    case FieldType::web_url:
      return "an address such as https://host/org/name, without user or password";
    case FieldType::repo:
      return "a repository such as org/name";
    case FieldType::revision:
      return "a branch, tag or commit";
    case FieldType::base_file:
      return "a YAML file in the same folder or below, such as ./base.yaml";
    case FieldType::pack_folder:
      return "a folder";
    case FieldType::folder:
      return "an absolute folder such as /data/models";
    case FieldType::program:
      return "an absolute path such as /usr/local/bin/engine";
    case FieldType::address:
      return "a host name or an IP address";
    case FieldType::http_path:
      return "a path such as /health";
    case FieldType::argument:
      return "a text of one argument";
    case FieldType::env_value:
      return "a text of one line";
    case FieldType::device:
      return "cpu or cuda:N";
  }
  return "a value";
}

const std::vector<Field>& fields_of(Document document) {
  return table_of(document).rows;
}

std::string table_path(std::string_view path) {
  std::string result;
  bool inside = false;
  for (char c : path) {
    if (c == ']') inside = false;
    if (!inside) result += c;
    if (c == '[') inside = true;
  }
  return result;
}

const Field* find_field(Document document, std::string_view path) {
  const Table& table = table_of(document);
  const std::string wanted = table_path(path);
  auto it = table.by_path.find(wanted);
  if (it == table.by_path.end()) it = table.by_path.find(std::string(parent(wanted)) + ".*");
  return it == table.by_path.end() ? nullptr : &table.rows[it->second];
}

std::vector<std::string> keys_below(Document document, std::string_view path) {
  const std::string above = table_path(path);
  std::vector<std::string> keys;
  for (const Field& field : fields_of(document)) {
    if (parent(field.path) != above || field.path.ends_with("[]")) continue;
    keys.emplace_back(leaf(field.path));
  }
  return keys;
}

std::string suggest_key(Document document, std::string_view path, std::string_view key) {
  const std::vector<std::string> here = keys_below(document, path);
  if (document == Document::recipe && path.empty() && find_field(Document::cluster, key))
    return "move it into the cluster file (--cluster FILE)";
  if (const std::string near = nearest_name(key, here); !near.empty()) return "did you mean `" + near + "`?";
  std::string elsewhere;
  int places = 0;
  for (const Field& field : fields_of(document)) {
    if (leaf(field.path) != key || field.path.find('[') != std::string_view::npos) continue;
    elsewhere = field.path;
    ++places;
  }
  if (places == 1) return "did you mean `" + elsewhere + "`?";
  std::string list;
  for (const std::string& name : here) list += (list.empty() ? "" : ", ") + name;
  return "remove it; the keys here are " + list;
}

}  // namespace tandem
