#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tandem {

/// Reads the fields of a client's JSON object; null counts as absent. All throw ApiError 400 naming the field.
class JsonFields {
 public:
  using Json = nlohmann::ordered_json;

  /// @param prefix  of names in errors: "stream_options."
  explicit JsonFields(const Json& object, std::string prefix = "") : object_(object), prefix_(std::move(prefix)) {}

  const Json* find(const char* name) const;
  std::optional<bool> boolean(const char* name) const;
  std::optional<std::string> text(const char* name) const;
  std::optional<int64_t> integer(const char* name, int64_t lowest, int64_t highest) const;
  std::optional<double> number(const char* name, double lowest, double highest) const;
  const Json* object(const char* name) const;
  const Json* array(const char* name) const;

  std::string path(const char* name) const { return prefix_ + name; }

 private:
  const Json& object_;
  std::string prefix_;
};

/// "a string", "an object", for errors.
std::string json_type_name(const nlohmann::ordered_json& value);

}  // namespace tandem
