#include "orchestrator/recipe/load.h"

#include <cstdlib>
#include <set>
#include <system_error>

#include "orchestrator/recipe/fields.h"
#include "orchestrator/recipe/layers.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

LoadedRecipe load(const LoadOptions& options, Problems& problems) {
  LoadedRecipe loaded;
  loaded.file = options.recipe;
  Layers layers = read_layers(options, problems);
  loaded.notes = std::move(layers.notes);
  if (!problems.empty()) return loaded;
  loaded.recipe = build_recipe(layers, problems, loaded.notes);
  loaded.cluster = build_cluster(layers, problems);
  loaded.values = effective_values(layers);
  return loaded;
}

/// Walks a tree along the table, so that the order is the table's and defaults come where they belong.
class ValueList {
 public:
  ValueList(Document document, std::string shown, std::vector<EffectiveValue>& values)
      : document_(document), shown_(std::move(shown)), values_(values) {}

  void map(const Value* value, const std::string& path) {
    for (const std::string& key : keys_below(document_, path)) {
      if (document_ == Document::cluster && path.empty() && key == "overrides") continue;  // shown where they act
      const std::string below = path.empty() ? key : path + "." + key;
      any(value ? value->find(key) : nullptr, *find_field(document_, below), below);
    }
  }

 private:
  void any(const Value* value, const Field& field, const std::string& path) {
    if (field.type == FieldType::map) {
      if (value || may_be_default(field)) map(value, path);
    } else if (field.type == FieldType::list) {
      if (!value) return;
      const Field& items = *find_field(document_, std::string(field.path) + "[]");
      for (size_t i = 0; i < value->items.size(); ++i)
        any(&value->items[i], items, path + "[" + std::to_string(i) + "]");
    } else if (field.type == FieldType::free_map) {
      if (!value) return;
      for (const Entry& entry : value->entries)
        values_.push_back({shown_ + path + "." + entry.key, entry.value.text, entry.value.place.text()});
    } else if (value) {
      values_.push_back({shown_ + path, value->text, value->place.text()});
    } else if (!field.fallback.empty()) {
      values_.push_back({shown_ + path, std::string(field.fallback), "default"});
    }
  }

  /// Sections that say what something is have no defaults when they are left out; settings have.
  bool may_be_default(const Field& field) const {
    return !field.recipe_only && field.path.find('[') == field.path.npos;
  }

  Document document_;
  std::string shown_;
  std::vector<EffectiveValue>& values_;
};

}  // namespace

std::vector<EffectiveValue> effective_values(const Layers& layers) {
  std::vector<EffectiveValue> values;
  ValueList(Document::recipe, "", values).map(&layers.recipe, "");
  ValueList(Document::cluster, "cluster.", values).map(&layers.cluster, "");
  return values;
}

LoadedRecipe load_recipe(const LoadOptions& options) {
  Problems problems;
  LoadedRecipe loaded = load(options, problems);
  if (!problems.empty()) throw problems.errors().front();
  return loaded;
}

std::vector<Error> find_problems(const LoadOptions& options) {
  Problems problems;
  load(options, problems);
  return problems.errors();
}

std::filesystem::path find_recipe(const std::string& name, const std::vector<fs::path>& folders) {
  std::error_code code;
  if (fs::is_regular_file(name, code)) return name;
  const bool is_path = name.find('/') != std::string::npos;
  std::set<std::string> known;
  for (const fs::path& folder : is_path ? std::vector<fs::path>() : folders) {
    for (const std::string& file : {name, name + ".yaml", name + ".yml"})
      if (fs::is_regular_file(folder / file, code)) return folder / file;
    for (fs::directory_iterator it(folder, code), end; !code && it != end; it.increment(code))
      if (it->path().extension() == ".yaml" && !it->path().stem().string().starts_with("reference"))
        known.insert(it->path().stem().string());
  }
  const std::string near = nearest_name(name, {known.begin(), known.end()});
  std::string fix = "give the path of a file";
  if (!near.empty())
    fix = "did you mean `" + near + "`?";
  else if (!known.empty()) {
    fix += ", or one of:";
    for (const std::string& recipe : known) fix += " " + printable(recipe, 100);
  }
  throw Error(ErrorKind::recipe, "there is no recipe `" + printable(name, 200) + "`", "", fix);
}

std::vector<fs::path> recipe_folders() {
  std::vector<fs::path> folders;
  if (const char* folder = std::getenv("TANDEM_RECIPES_DIR"); folder && *folder) folders.emplace_back(folder);
  folders.emplace_back("recipes");
  std::error_code code;
  const fs::path program = fs::read_symlink("/proc/self/exe", code);
  if (!code) folders.push_back(program.parent_path().parent_path() / "share" / "tandem" / "recipes");
  return folders;
}

}  // namespace tandem
