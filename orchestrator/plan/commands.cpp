#include "orchestrator/plan/commands.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <ostream>

#include "orchestrator/fetch/fetch.h"
#include "runtime/common/error.h"
#include "runtime/common/file.h"
#include "runtime/common/hash.h"
#include "runtime/common/units.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

Lock make_lock(const LoadedRecipe& loaded, const std::atomic<bool>* cancel) {
  const Recipe& recipe = loaded.recipe;
  Lock lock;
  lock.recipe = recipe.name;
  if (!recipe.pack.path.empty()) {
    lock.path = recipe.pack.path;
    PackFactsOptions options;
    options.offline = true;
    lock.files = gather_pack_facts(recipe, loaded.cluster, options, cancel).files;
    for (PlannedFile& file : lock.files)
      file.sha256 = hash_file_hex(fs::path(recipe.pack.path) / file.name, HashKind::sha256, cancel);
    return lock;
  }
  HubOptions hub_options = hub_options_from_environment();
  lock.repo = recipe.pack.repo;
  if (!loaded.cluster.hub_endpoint.empty()) hub_options.endpoint = loaded.cluster.hub_endpoint;
  if (!recipe.pack.url.empty()) {
    const PackUrl url = parse_pack_url(recipe.pack.url);
    lock.repo = url.repo;
    lock.endpoint = hub_options.endpoint = url.endpoint;
  }
  lock.revision = recipe.pack.revision;
  HubClient hub(hub_options, cancel);
  lock.commit = hub.resolve_commit(lock.repo, lock.revision);
  for (const HubFile& file : hub.list_files_with_sha256(lock.repo, lock.commit))
    lock.files.push_back({file.path, file.size, file.sha256});
  return lock;
}

}  // namespace

PreparedPlan prepare_plan(const PlanOptions& options, const AskNodes& ask_nodes, const std::atomic<bool>* cancel) {
  PreparedPlan prepared;
  prepared.loaded = load_recipe(options.load);
  const Recipe& recipe = prepared.loaded.recipe;
  prepared.cluster = prepared.loaded.cluster;
  if (options.offline) prepared.cluster = assumed_cluster(recipe, prepared.cluster);
  prepared.lock = find_lock(recipe, prepared.loaded.file);
  PackFactsOptions facts_options;
  facts_options.offline = options.offline;
  facts_options.hub_cache = prepared.cluster.nodes.front().hub_cache;
  facts_options.lock = prepared.lock;
  prepared.pack = gather_pack_facts(recipe, prepared.cluster, facts_options, cancel);
  prepared.facts =
      options.offline ? assumed_facts(recipe, prepared.cluster) : ask_nodes(recipe, prepared.cluster, prepared.pack);
  prepared.plan = make_plan(recipe, prepared.cluster, prepared.facts, prepared.pack, options.offline);
  for (const Note& note : prepared.loaded.notes)
    if (!prepared.lock || !note.unpinned) prepared.plan.notes.push_back(note.text);
  return prepared;
}

int plan_command(const PlanOptions& options, bool json, const AskNodes& ask_nodes, std::ostream& out,
                 const std::atomic<bool>* cancel) {
  const Plan plan = prepare_plan(options, ask_nodes, cancel).plan;
  if (json) {
    out << plan_json(plan).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << "\n";
  } else {
    out << plan_text(plan);
  }
  return plan_exit_code(plan.status);
}

void lock_command(const LockOptions& options, bool json, std::ostream& out, const std::atomic<bool>* cancel) {
  const LoadedRecipe loaded = load_recipe(options.load);
  const Lock lock = make_lock(loaded, cancel);
  const fs::path path = lock_path(loaded.file);
  const std::string shown = printable(path.string());
  if (options.check) {
    const std::optional<Lock> there = find_lock(loaded.recipe, loaded.file);
    if (!there) throw Error(ErrorKind::recipe, "the recipe has no lock", shown, "run `tandem lock`");
    if (!(*there == lock))
      throw Error(ErrorKind::recipe, "the pack is no longer what the lock says", shown,
                  "run `tandem lock` to accept the pack as it is now");
  } else {
    write_file_atomic(path, format_lock(lock), ErrorKind::recipe);
  }
  const int64_t bytes = std::accumulate(lock.files.begin(), lock.files.end(), int64_t{0},
                                        [](int64_t sum, const PlannedFile& file) { return sum + file.bytes; });
  if (json) {
    nlohmann::ordered_json result = {{"schema_version", 1}, {"lock", shown},           {"repo", lock.repo},
                                     {"path", lock.path},   {"commit", lock.commit},   {"files", lock.files.size()},
                                     {"bytes", bytes},      {"checked", options.check}};
    out << result.dump(2) << "\n";
    return;
  }
  out << shown << ": " << (lock.repo.empty() ? lock.path : lock.repo + " at " + lock.commit) << ", "
      << lock.files.size() << " files, " << format_bytes(bytes) << (options.check ? ", as locked\n" : "\n");
}

}  // namespace tandem
