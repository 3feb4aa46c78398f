#include "orchestrator/recipe/commands.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>

#include "orchestrator/recipe/source_text.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

std::string shown(const Note& note) {
  return note.where.empty() ? note.text : note.where + ": " + note.text;
}

}  // namespace

int validate_command(const LoadOptions& options, bool json, std::ostream& out, std::ostream& errors) {
  const std::vector<Error> problems = find_problems(options);
  const std::string file = printable(options.recipe.string());
  std::vector<Note> notes;
  if (problems.empty()) notes = load_recipe(options).notes;
  if (json) {
    Json result = {{"schema_version", 1}, {"recipe", file}, {"valid", problems.empty()}};
    result["problems"] = Json::array();
    for (const Error& problem : problems)
      result["problems"].push_back({{"what", printable(problem.what())},
                                    {"where", printable(problem.where())},
                                    {"fix", printable(problem.fix())}});
    result["notes"] = Json::array();
    for (const Note& note : notes)
      result["notes"].push_back({{"text", printable(note.text)}, {"where", printable(note.where)}});
    out << result.dump(2) << "\n";
  } else {
    for (const Error& problem : problems) errors << problem.report();
    for (const Note& note : notes) errors << "note:  " << printable(shown(note)) << "\n";
    if (problems.empty()) {
      out << file << ": sound\n";
    } else {
      out << file << ": " << problems.size() << (problems.size() == 1 ? " problem\n" : " problems\n");
    }
  }
  return problems.empty() ? 0 : exit_code(ErrorKind::recipe);
}

void show_command(const ShowOptions& options, std::ostream& out) {
  const LoadedRecipe loaded = load_recipe(options.load);
  if (options.json) {
    Json result = {{"schema_version", 1}, {"recipe", printable(loaded.file.string())}};
    result["values"] = Json::array();
    for (const EffectiveValue& value : loaded.values) {
      Json item = {{"path", value.path}, {"value", value.value}};
      if (options.origin) item["origin"] = value.origin;
      result["values"].push_back(std::move(item));
    }
    out << result.dump(2) << "\n";
    return;
  }
  size_t path_width = 0, value_width = 0;
  constexpr size_t kWidest = 60;
  for (const EffectiveValue& value : loaded.values) {
    path_width = std::max(path_width, value.path.size());
    value_width = std::max(value_width, std::min(kWidest, one_line(value.value).size()));
  }
  for (const EffectiveValue& value : loaded.values) {
    const std::string text = one_line(value.value);
    out << value.path << std::string(path_width - value.path.size() + 2, ' ') << text;
    if (options.origin)
      out << std::string(text.size() < value_width ? value_width - text.size() + 2 : 2, ' ') << value.origin;
    out << "\n";
  }
}

}  // namespace tandem
