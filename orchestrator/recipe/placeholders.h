#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

/// The closed set of placeholders in arguments and variables of a foreign engine, without braces.
const std::vector<std::string>& placeholder_names();

/// What is wrong with the braces in `text`, or nothing. {{ and }} stand for braces.
struct PlaceholderProblem {
  std::string what, fix;
};
std::optional<PlaceholderProblem> check_placeholders(std::string_view text);

/// Puts in the values. `text` has passed check_placeholders and `values` has every name.
std::string resolve_placeholders(std::string_view text, const std::map<std::string, std::string>& values);

}  // namespace tandem
