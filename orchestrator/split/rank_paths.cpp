#include "orchestrator/split/rank_paths.h"

#include <algorithm>
#include <cstdlib>

#include "runtime/common/shard.h"

namespace tandem {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

/// A text made one harmless path component.
std::string component(std::string_view text) {
  std::string result(text.substr(0, 160));
  for (char& c : result) {
    const bool fine =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
    if (!fine) c = '-';
  }
  const size_t first = result.find_first_not_of('.');  // neither "..", nor hidden
  return first == std::string::npos ? "pack" : result.substr(first);
}

}  // namespace

std::string pack_key(std::string_view pack_name, std::string_view commit_or_hash) {
  while (pack_name.ends_with('/')) pack_name.remove_suffix(1);
  const std::string_view leaf = pack_name.substr(pack_name.rfind('/') + 1);  // npos + 1 is 0
  return component(leaf) + "-" + component(commit_or_hash.substr(0, 12));
}

std::filesystem::path rank_folder_path(const std::filesystem::path& ranks_folder, std::string_view pack_key,
                                       int world_size, int rank) {
  const std::string split =
      component(pack_key) + "-l" + std::to_string(kSplitLayoutVersion) + "-tp" + std::to_string(world_size);
  return ranks_folder / split / ("rank" + std::to_string(rank));
}

std::filesystem::path default_ranks_folder() {
  if (const std::string cache = environment("TANDEM_CACHE_DIR"); !cache.empty())
    return std::filesystem::path(cache) / "ranks";
  if (const std::string cache = environment("XDG_CACHE_HOME"); !cache.empty())
    return std::filesystem::path(cache) / "tandem" / "ranks";
  return std::filesystem::path(environment("HOME")) / ".cache" / "tandem" / "ranks";
}

}  // namespace tandem
