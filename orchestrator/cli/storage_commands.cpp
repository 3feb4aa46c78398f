#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "orchestrator/cli/commands.h"
#include "orchestrator/cli/console.h"
#include "orchestrator/fetch/cache.h"
#include "orchestrator/fetch/mirror.h"
#include "orchestrator/launch/up.h"
#include "orchestrator/split/split.h"
#include "runtime/common/error.h"
#include "runtime/common/manifest.h"
#include "runtime/common/shard.h"
#include "runtime/common/units.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// A rank folder on this disk.
struct RankFolder {
  fs::path path;
  int64_t bytes = 0;
  std::string problem;  ///< why this version cannot use it; "" when it can
};

int64_t folder_bytes(const fs::path& folder) {
  int64_t bytes = 0;
  std::error_code ignored;
  for (const auto& entry : fs::recursive_directory_iterator(folder, ignored))
    if (entry.is_regular_file(ignored)) bytes += static_cast<int64_t>(entry.file_size(ignored));
  return bytes;
}

std::string problem_of(const fs::path& folder) {
  if (folder.extension() == ".partial") return "unfinished: an interrupted split goes on from it";
  try {
    const Manifest manifest = read_manifest(folder, /*with_tensors=*/false);
    if (manifest.layout_version != kSplitLayoutVersion)
      return "split layout " + std::to_string(manifest.layout_version) + ", this version uses " +
             std::to_string(kSplitLayoutVersion);
    check_manifest(folder, manifest, {});
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

std::vector<RankFolder> list_rank_folders() {
  std::vector<RankFolder> folders;
  std::error_code ignored;
  for (const auto& pack : fs::directory_iterator(default_ranks_folder(), ignored))
    for (const auto& rank : fs::directory_iterator(pack.path(), ignored))
      if (rank.is_directory(ignored))
        folders.push_back({rank.path(), folder_bytes(rank.path()), problem_of(rank.path())});
  std::sort(folders.begin(), folders.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return folders;
}

int prune(const Arguments& arguments) {
  Json removed = Json::array();
  int64_t bytes = 0;
  for (const RankFolder& folder : list_rank_folders()) {
    if (folder.problem.empty()) continue;
    bytes += folder.bytes;
    removed.push_back({{"path", folder.path.string()}, {"bytes", folder.bytes}, {"problem", folder.problem}});
    if (!arguments.json)
      std::cout << printable(folder.path.string()) << "  " << format_bytes(folder.bytes) << "  "
                << printable(folder.problem) << "\n";
    std::error_code failure;
    if (arguments.yes && fs::remove_all(folder.path, failure) == static_cast<std::uintmax_t>(-1))
      throw Error(ErrorKind::split, "cannot remove a rank folder: " + failure.message(), folder.path.string());
    if (arguments.yes) fs::remove(folder.path.parent_path(), failure);  // only when empty
  }
  if (arguments.json) {
    print_json({{"schema_version", 1}, {"removed", arguments.yes}, {"bytes", bytes}, {"rank_folders", removed}});
  } else if (removed.empty()) {
    std::cout << "nothing to remove\n";
  } else {
    std::cout << format_bytes(bytes) << (arguments.yes ? " removed\n" : " would be removed; add --yes to do it\n");
  }
  return 0;
}

int run_stage(launch::Stage stage, const Arguments& arguments, const Interrupts& interrupts) {
  const launch::StageResult result = [&] {
    DisplayOptions options = display_options(arguments);
    options.show_plan = false;
    StageDisplay display(std::cerr, options);
    return launch::run_until(stage, load_options(arguments), arguments.verify, display, interrupts.token());
  }();
  std::vector<std::string> folders = result.folders;
  if (stage == launch::Stage::split) {
    folders.clear();
    for (const PlannedRank& rank : result.plan.ranks) folders.push_back(rank.folder);
  }
  if (arguments.json) {
    print_json({{"schema_version", 1}, {"recipe", result.plan.recipe_name}, {"folders", folders}});
  } else {
    for (const std::string& folder : folders) std::cout << folder << "\n";
  }
  return 0;
}

}  // namespace

int run_fetch(const Arguments& arguments, const Interrupts& interrupts) {
  return run_stage(launch::Stage::fetch, arguments, interrupts);
}

int run_split(const Arguments& arguments, const Interrupts& interrupts) {
  return run_stage(launch::Stage::split, arguments, interrupts);
}

int run_mirror(const Arguments& arguments, const Interrupts& interrupts) {
  MirrorOptions options;
  options.root = arguments.root.empty() ? hub_cache_dir() : arguments.root;
  options.address = arguments.address;
  options.port = arguments.port;
  options.log = arguments.log;
  options.quiet = arguments.quiet;
  if (!arguments.limit.empty()) {
    const auto limit = parse_bytes(arguments.limit);
    if (!limit)
      throw Error(ErrorKind::usage, "--limit `" + printable(arguments.limit, 64) + "` is no number of bytes", "",
                  "write it with its unit, e.g. 50MiB");
    options.bytes_per_second = *limit;
  }
  tandem::run_mirror(options, interrupts.flag());
  return 0;
}

int run_cache(const Arguments& arguments) {
  if (arguments.subcommand == "prune") return prune(arguments);
  Json packs = Json::array(), ranks = Json::array();
  const fs::path hub = hub_cache_dir();
  if (!arguments.json) std::cout << "packs in " << printable(hub.string()) << "\n";
  for (const CachedRepo& repo : list_cache(hub)) {
    if (!arguments.json)
      std::cout << "  " << printable(repo.repo) << "  " << format_bytes(repo.blob_bytes)
                << (repo.partial_bytes > 0 ? ", unfinished " + format_bytes(repo.partial_bytes) : "") << "\n";
    Json snapshots = Json::array();
    for (const Snapshot& snapshot : repo.snapshots) {
      snapshots.push_back({{"commit", snapshot.commit}, {"files", snapshot.files}, {"bytes", snapshot.bytes}});
      if (snapshot.complete) snapshots.back()["complete"] = *snapshot.complete;
      if (!arguments.json)
        std::cout << "    " << snapshot.commit << "  " << snapshot.files << " files"
                  << (!snapshot.complete   ? ""
                      : *snapshot.complete ? ", whole"
                                           : ", not whole")
                  << "\n";
    }
    packs.push_back({{"repo", repo.repo},
                     {"path", repo.path.string()},
                     {"bytes", repo.blob_bytes},
                     {"partial_bytes", repo.partial_bytes},
                     {"snapshots", snapshots}});
  }
  if (!arguments.json) std::cout << "rank folders in " << printable(default_ranks_folder().string()) << "\n";
  for (const RankFolder& folder : list_rank_folders()) {
    ranks.push_back({{"path", folder.path.string()}, {"bytes", folder.bytes}, {"problem", folder.problem}});
    if (!arguments.json)
      std::cout << "  " << printable(folder.path.lexically_relative(default_ranks_folder()).string()) << "  "
                << format_bytes(folder.bytes) << (folder.problem.empty() ? "" : "  " + printable(folder.problem))
                << "\n";
  }
  if (arguments.json)
    print_json({{"schema_version", 1},
                {"hub_cache", hub.string()},
                {"packs", packs},
                {"ranks_folder", default_ranks_folder().string()},
                {"rank_folders", ranks}});
  return 0;
}

}  // namespace tandem::cli
