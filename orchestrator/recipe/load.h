#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "orchestrator/recipe/recipe.h"
#include "runtime/common/error.h"

namespace tandem {

/// The three layers of a run.
struct LoadOptions {
  std::filesystem::path recipe;                  ///< a file
  std::optional<std::filesystem::path> cluster;  ///< none: this machine
  std::vector<std::string> sets;                 ///< "engine.context=64k", "cluster.ports.http=9000"
};

/// Something accepted that the author may want to know: a byte order mark, a revision that is not a commit.
struct Note {
  std::string text;
  std::string where;
  bool unpinned = false;  ///< says that the pack's revision may move, which a lock settles
};

/// One effective value and where it comes from, as `tandem show --origin` prints it.
struct EffectiveValue {
  std::string path;    ///< "engine.context", "measurements[0].value"; cluster values start with "cluster."
  std::string value;   ///< as written (defaults: as one would write them)
  std::string origin;  ///< "recipes/x.yaml:14:12", "cluster.yaml:3:5", "--set engine.context", "default"
};

struct LoadedRecipe {
  Recipe recipe;
  Cluster cluster;
  std::vector<EffectiveValue> values;  ///< in the table's order
  std::vector<Note> notes;
  std::filesystem::path file;
};

/// Reads, merges and checks the three layers.
/// @throws Error  kind `recipe` (or `usage` for a --set that is no KEY=VALUE): the first problem, with its place
LoadedRecipe load_recipe(const LoadOptions& options);

/// Every problem that load_recipe would stop at, in the order of the files; empty when the recipe is sound.
std::vector<Error> find_problems(const LoadOptions& options);

/// The file that `name` means: a path as given, else NAME or NAME.yaml in one of `folders`.
/// @throws Error  kind `recipe`, with the nearest name that exists
std::filesystem::path find_recipe(const std::string& name, const std::vector<std::filesystem::path>& folders);

/// Where recipes are looked for: TANDEM_RECIPES_DIR, ./recipes, and share/tandem/recipes beside the running program.
std::vector<std::filesystem::path> recipe_folders();

}  // namespace tandem
