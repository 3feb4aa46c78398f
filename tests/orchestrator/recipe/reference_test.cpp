// Holds the shipped files against the table of fields: reference.yaml both ways, the schemas byte by byte.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "orchestrator/recipe/check.h"
#include "orchestrator/recipe/document.h"
#include "orchestrator/recipe/load.h"
#include "orchestrator/recipe/schema.h"
#include "tests/catch.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

const fs::path kRecipes = fs::path(TANDEM_SOURCE_DIR) / "recipes";

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

/// Alternatives and settings of another engine stand in the reference as `#key: value`; prose has a blank after the #.
std::string with_alternatives(const std::string& text) {
  static const std::regex commented("^( *(- )?)#([A-Za-z{\\[-].*)$");
  std::istringstream in(text);
  std::string result;
  for (std::string line; std::getline(in, line);) result += std::regex_replace(line, commented, "$1$3") + "\n";
  return result;
}

void collect(const Value& value, const std::string& path, std::set<std::string>& paths, Document document) {
  if (!path.empty()) paths.insert(std::string(find_field(document, path) ? find_field(document, path)->path : path));
  for (const Entry& entry : value.entries)
    collect(entry.value, path.empty() ? entry.key : path + "." + entry.key, paths, document);
  for (const Value& item : value.items) collect(item, path + "[]", paths, document);
}

void check_reference(const fs::path& file, Document document) {
  Problems problems;
  const std::string text = read(file);
  const SourceText source = check_source(with_alternatives(text), file.filename().string(), problems);
  const Value root = parse_document(source, document == Document::recipe ? Layer::recipe : Layer::cluster, problems);
  check_layer(root, document, problems);
  for (const Error& problem : problems.errors()) FAIL_CHECK(problem.report());  // every key there exists

  std::set<std::string> present;
  collect(root, "", present, document);
  for (const Field& field : fields_of(document)) {
    INFO("recipes/" << file.filename().string() << " does not show " << field.path);
    CHECK(present.contains(std::string(field.path)));
  }

  // Explained: the line of a key, or one above it without a key in between, has a comment in prose.
  static const std::regex key_line("^ *(- )?#?(\\{?[a-z_]+): *.*$"), comment("(^|.* )# .+");
  std::istringstream in(text);
  bool explained = false;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    const bool has_comment = std::regex_match(line, comment);
    if (std::regex_match(line, key_line) && line.find("# ") != line.find_first_not_of(' ')) {
      INFO(file.filename().string() << ":" << number << " has no explanation: " << line);
      CHECK((explained || has_comment));
      explained = false;
    } else if (has_comment) {
      explained = true;
    }
  }
}

TEST_CASE("recipes/reference.yaml shows and explains every key of a recipe, and no other", "[recipe]") {
  check_reference(kRecipes / "reference.yaml", Document::recipe);
}

TEST_CASE("recipes/reference-cluster.yaml shows and explains every key of a cluster file, and no other", "[recipe]") {
  check_reference(kRecipes / "reference-cluster.yaml", Document::cluster);
}

TEST_CASE("the reference files work as they stand", "[recipe]") {
  for (const Error& problem : find_problems(
           {.recipe = kRecipes / "reference.yaml", .cluster = kRecipes / "reference-cluster.yaml", .sets = {}}))
    FAIL_CHECK(problem.report());
}

TEST_CASE("every shipped recipe is sound and has the name of its file", "[recipe]") {
  int recipes = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(kRecipes)) {
    const std::string stem = entry.path().stem().string();
    if (entry.path().extension() != ".yaml" || stem.starts_with("reference")) continue;
    ++recipes;
    INFO(entry.path().string());
    const LoadedRecipe loaded = load_recipe({.recipe = entry.path(), .cluster = {}, .sets = {}});
    CHECK(loaded.recipe.name == stem);
    for (const Measurement& measurement : loaded.recipe.measurements) {
      CHECK(measurement.condition != "");
      CHECK(measurement.source != "");
    }
  }
  CHECK(recipes >= 4);
}

TEST_CASE("the schemas are those of the table", "[recipe]") {
  const std::map<std::string, Document> schemas = {{"schema.json", Document::recipe},
                                                   {"cluster-schema.json", Document::cluster}};
  for (const auto& [name, document] : schemas) {
    if (std::getenv("TANDEM_WRITE_SCHEMA")) std::ofstream(kRecipes / name, std::ios::binary) << json_schema(document);
    INFO("recipes/" << name
                    << " is stale; TANDEM_WRITE_SCHEMA=1 tests/test_recipe, in the build folder, writes it anew");
    CHECK((read(kRecipes / name) == json_schema(document)));
  }
}

TEST_CASE("every row of the tables has an explanation, and its default passes its own check", "[recipe]") {
  for (Document document : {Document::recipe, Document::cluster}) {
    for (const Field& field : fields_of(document)) {
      INFO(field.path);
      CHECK(field.doc.ends_with("."));
      if (field.fallback.empty()) continue;
      Value value;
      value.kind = Value::Kind::scalar;
      value.text = field.fallback;
      CHECK_FALSE(check_scalar(field, value));
    }
  }
}

}  // namespace
}  // namespace tandem
