#include "orchestrator/recipe/placeholders.h"

#include <algorithm>

#include "runtime/common/error.h"

namespace tandem {

const std::vector<std::string>& placeholder_names() {
  static const std::vector<std::string> names = {
      "rank",  "world_size", "pack",    "master_address", "master_port", "listen_address", "port",        "context",
      "slots", "mtp_depth",  "threads", "device",         "model_name",  "node",           "link_address"};
  return names;
}

std::optional<PlaceholderProblem> check_placeholders(std::string_view text) {
  const std::string literal = "write {{ or }} for a brace that is meant literally";
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '{' && text[i] != '}') continue;
    if (i + 1 < text.size() && text[i + 1] == text[i]) {
      ++i;
      continue;
    }
    if (text[i] == '}') return PlaceholderProblem{"a `}` closes nothing", literal};
    const size_t end = text.find_first_of("{}", i + 1);
    if (end == std::string_view::npos || text[end] != '}') return PlaceholderProblem{"a `{` is not closed", literal};
    const std::string name(text.substr(i + 1, end - i - 1));
    const std::vector<std::string>& names = placeholder_names();
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      const std::string near = nearest_name(name, names);
      std::string all;
      for (const std::string& known : names) all += " {" + known + "}";
      return PlaceholderProblem{"there is no placeholder `{" + printable(name, 60) + "}`",
                                near.empty() ? "use one of" + all + ", or " + literal
                                             : "did you mean `{" + near + "}`? Otherwise " + literal};
    }
    i = end;
  }
  return std::nullopt;
}

std::string resolve_placeholders(std::string_view text, const std::map<std::string, std::string>& values) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c != '{' && c != '}') {
      result += c;
    } else if (i + 1 < text.size() && text[i + 1] == c) {
      result += c;
      ++i;
    } else {
      const size_t end = text.find('}', i);
      if (end == std::string_view::npos) throw Error(ErrorKind::internal, "an argument was not checked for braces");
      const auto it = values.find(std::string(text.substr(i + 1, end - i - 1)));
      if (it == values.end())
        throw Error(ErrorKind::internal, "no value for placeholder " + std::string(text.substr(i, end - i + 1)));
      result += it->second;  // not looked at again: a value cannot bring placeholders of its own
      i = end;
    }
  }
  return result;
}

}  // namespace tandem
