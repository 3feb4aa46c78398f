#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "orchestrator/plan/plan.h"

namespace tandem {

/// NAME.lock: what a recipe's pack was when it was locked. With it, `up` fetches exactly these files, whatever the
/// branch is today.
struct Lock {
  std::string recipe;              ///< its name
  std::string repo;                ///< "" for a folder
  std::string endpoint;            ///< of pack.url; "" for the hub
  std::string path;                ///< of a folder
  std::string revision;            ///< as the recipe says
  std::string commit;              ///< 40 hex digits; "" for a folder
  std::vector<PlannedFile> files;  ///< by name; sha256 always known

  bool operator==(const Lock&) const = default;
};

/// Where the lock of a recipe lies: beside it, "recipes/x.yaml" -> "recipes/x.lock".
std::filesystem::path lock_path(const std::filesystem::path& recipe_file);

/// JSON, which is also YAML; one file a line, so that a difference shows what changed.
std::string format_lock(const Lock& lock);

/// @param where  for messages
/// @throws Error  kind `recipe`: not a lock, another version, values that cannot be
Lock parse_lock(std::string_view text, const std::string& where);

/// The lock beside the recipe, or nothing. @throws Error as parse_lock, and when it was made for another pack
std::optional<Lock> find_lock(const Recipe& recipe, const std::filesystem::path& recipe_file);

/// @throws Error  kind `recipe`, when the recipe names another pack or revision than the lock
void check_lock(const Lock& lock, const Recipe& recipe, const std::string& where);

}  // namespace tandem
