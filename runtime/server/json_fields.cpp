#include "runtime/server/json_fields.h"

#include <cmath>

#include "runtime/server/api_error.h"

namespace tandem {
namespace {

std::string number_text(double value) {
  return nlohmann::json(value).dump();
}

}  // namespace

std::string json_type_name(const nlohmann::ordered_json& value) {
  switch (value.type()) {
    case nlohmann::json::value_t::null:
      return "null";
    case nlohmann::json::value_t::boolean:
      return "a boolean";
    case nlohmann::json::value_t::string:
      return "a string";
    case nlohmann::json::value_t::array:
      return "an array";
    case nlohmann::json::value_t::object:
      return "an object";
    case nlohmann::json::value_t::number_float:
      return "a number";
    default:
      return "an integer";
  }
}

const JsonFields::Json* JsonFields::find(const char* name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<bool> JsonFields::boolean(const char* name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean())
    throw bad_request("`" + path(name) + "` is " + json_type_name(*value) + ", expected a boolean", path(name));
  return value->get<bool>();
}

std::optional<std::string> JsonFields::text(const char* name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string())
    throw bad_request("`" + path(name) + "` is " + json_type_name(*value) + ", expected a string", path(name));
  return value->get<std::string>();
}

std::optional<int64_t> JsonFields::integer(const char* name, int64_t lowest, int64_t highest) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  const std::string range = std::to_string(lowest) + " to " + std::to_string(highest);
  // Some clients' libraries send 512.0.
  const bool whole = value->is_number_integer() || (value->is_number_float() && std::abs(value->get<double>()) < 9e15 &&
                                                    std::floor(value->get<double>()) == value->get<double>());
  if (!whole)
    throw bad_request("`" + path(name) + "` is " + json_type_name(*value) + ", expected an integer of " + range,
                      path(name));
  const bool too_large = value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  const int64_t number = too_large                  ? INT64_MAX
                         : value->is_number_float() ? static_cast<int64_t>(value->get<double>())
                                                    : value->get<int64_t>();
  if (too_large || number < lowest || number > highest)
    throw bad_request("`" + path(name) + "` is " + value->dump() + ", expected an integer of " + range, path(name));
  return number;
}

std::optional<double> JsonFields::number(const char* name, double lowest, double highest) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  const std::string range = number_text(lowest) + " to " + number_text(highest);
  if (!value->is_number())
    throw bad_request("`" + path(name) + "` is " + json_type_name(*value) + ", expected a number of " + range,
                      path(name));
  const double number = value->get<double>();
  if (!(number >= lowest && number <= highest))
    throw bad_request("`" + path(name) + "` is " + value->dump() + ", expected a number of " + range, path(name));
  return number;
}

const JsonFields::Json* JsonFields::object(const char* name) const {
  const Json* value = find(name);
  if (value != nullptr && !value->is_object())
    throw bad_request("`" + path(name) + "` is " + json_type_name(*value) + ", expected an object", path(name));
  return value;
}

const JsonFields::Json* JsonFields::array(const char* name) const {
  const Json* value = find(name);
  if (value != nullptr && !value->is_array())
    throw bad_request("`" + path(name) + "` is " + json_type_name(*value) + ", expected an array", path(name));
  return value;
}

}  // namespace tandem
