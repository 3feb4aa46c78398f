#include "orchestrator/recipe/schema.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

Json pattern(const char* regex) {
  return {{"type", "string"}, {"pattern", regex}};
}

Json scalar_schema(const Field& field) {
  switch (field.type) {
    case FieldType::choice: {
      Json choices = Json::array();
      for (std::string_view choice : field.choices) choices.push_back(choice);
      return {{"enum", choices}};
    }
    case FieldType::boolean:
      return {{"type", "boolean"}};
    case FieldType::integer:
      return {{"type", "integer"}};
    case FieldType::number:
      return {{"type", "number"}};
    case FieldType::bytes:
      return pattern("^[0-9]+(\\.[0-9]+)?(B|[kMGT]B|[KMGT]iB)$");
    case FieldType::tokens:
      return {{"anyOf", Json::array({Json{{"type", "integer"}, {"minimum", 0}}, pattern("^[0-9]+(\\.[0-9]+)?[kM]$")})}};
    case FieldType::bandwidth:
      return pattern("^[0-9]+(\\.[0-9]+)?[kMGT]?bit/s$");
    case FieldType::duration:
      return pattern("^[0-9]+(\\.[0-9]+)?(ns|us|ms|s|m|h)$");
    case FieldType::name:
      return pattern("^[A-Za-z0-9][A-Za-z0-9._-]{0,95}$");
    case FieldType::date:
      return pattern("^20[0-9]{2}-[0-9]{2}-[0-9]{2}$");
    case FieldType::web_url:
      return pattern("^https?://");
    case FieldType::repo:
      return pattern("^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$");
    case FieldType::revision:
      return pattern("^[A-Za-z0-9][A-Za-z0-9._/-]*$");
    case FieldType::base_file:
      return pattern("^[^/~].*\\.ya?ml$");
    case FieldType::folder:
    case FieldType::program:
      return pattern("^/");
    case FieldType::http_path:
      return pattern("^/[A-Za-z0-9._~/-]*$");
    case FieldType::device:
      return pattern("^(cpu|cuda:[0-9]+)$");
    case FieldType::argument:
    case FieldType::env_value:
      return {{"type", Json::array({"string", "integer"})}};
    default:
      return {{"type", "string"}, {"minLength", 1}};
  }
}

class SchemaWriter {
 public:
  explicit SchemaWriter(Document document) : document_(document) {}

  /// A recipe that extends another may leave anything to it, so only what is whole by itself, the items of lists and a
  /// recipe without a base, has required keys here; the parser looks at the merged recipe.
  Json map(const std::string& path) const {
    const bool whole = path.ends_with("[]") || path.empty();
    Json properties = Json::object(), required = Json::array();
    for (const std::string& key : keys_below(document_, path)) {
      const std::string below = path.empty() ? key : path + "." + key;
      const Field& field = *find_field(document_, below);
      properties[key] = any(field);
      if (field.required && whole) required.push_back(key);
    }
    Json schema = {{"type", "object"}, {"additionalProperties", false}};
    if (path.empty() && document_ == Document::recipe) {
      schema["if"] = {{"required", Json::array({"extends"})}};
      schema["then"] = {{"required", Json::array({"schema", "name"})}};
      schema["else"] = {{"required", required}};
    } else if (!required.empty()) {
      schema["required"] = required;
    }
    schema["properties"] = properties;
    return schema;
  }

 private:
  Json any(const Field& field) const {
    const std::string path(field.path);
    Json schema;
    if (document_ == Document::cluster && path == "overrides") {
      schema = {{"type", "object"}};  // the recipe's keys, of which any may be left out: checked by `tandem validate`
    } else if (field.type == FieldType::map) {
      schema = map(path);
    } else if (field.type == FieldType::free_map) {
      schema = {{"type", "object"}, {"additionalProperties", any(*find_field(document_, path + ".*"))}};
    } else if (field.type == FieldType::list) {
      schema = {{"type", "array"}, {"items", any(*find_field(document_, path + "[]"))}};
      if (field.max != 0) {
        schema["minItems"] = static_cast<int64_t>(field.min);
        schema["maxItems"] = static_cast<int64_t>(field.max);
      }
    } else {
      schema = scalar_schema(field);
      const bool plain_number = field.type == FieldType::integer || field.type == FieldType::number;
      if (plain_number && (field.min != 0 || field.max != 0)) {
        schema["minimum"] = bound(field.min);
        schema["maximum"] = bound(field.max);
      }
      if (!field.fallback.empty()) schema["default"] = fallback(field);
    }
    schema["description"] = field.doc;
    return schema;
  }

  static Json bound(double value) {
    if (value == std::floor(value) && std::abs(value) < 1e15) return static_cast<int64_t>(value);
    return value;
  }

  static Json fallback(const Field& field) {
    const std::string text(field.fallback);
    if (field.type == FieldType::boolean) return text == "true";
    if (field.type == FieldType::integer || field.type == FieldType::number) return Json::parse(text);
    if (field.type == FieldType::tokens && text.find_first_not_of("0123456789") == std::string::npos)
      return Json::parse(text);
    return text;
  }

  Document document_;
};

}  // namespace

std::string json_schema(Document document) {
  const bool recipe = document == Document::recipe;
  Json schema = {{"$schema", "http://json-schema.org/draft-07/schema#"},
                 {"title", recipe ? "Tandem recipe" : "Tandem cluster"},
                 {"description", recipe ? "What is served, and how; recipes/reference.yaml explains every key."
                                        : "On which machines; examples/clusters explains every key."}};
  schema.update(SchemaWriter(document).map(""));
  return schema.dump(2) + "\n";
}

}  // namespace tandem
