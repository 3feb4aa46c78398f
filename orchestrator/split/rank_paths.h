#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace tandem {

// Where rank folders live. Pure functions, shared by plan, split and launch.

/// Name under which a pack's rank folders live: "<pack name>-<first 12 of the commit, else of the content hash>".
/// Characters outside [A-Za-z0-9._-] become '-', so that a recipe cannot lead out of the cache.
std::string pack_key(std::string_view pack_name, std::string_view commit_or_hash);

/// <ranks_folder>/<pack key>-l<layout version>-tp<world_size>/rank<rank>
std::filesystem::path rank_folder_path(const std::filesystem::path& ranks_folder, std::string_view pack_key,
                                       int world_size, int rank);

/// $TANDEM_CACHE_DIR/ranks, else $XDG_CACHE_HOME/tandem/ranks, else ~/.cache/tandem/ranks.
std::filesystem::path default_ranks_folder();

}  // namespace tandem
