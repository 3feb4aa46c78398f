#include "orchestrator/plan/pack_facts.h"

#include <algorithm>
#include <numeric>

#include "orchestrator/fetch/cache.h"
#include "orchestrator/fetch/fetch.h"
#include "orchestrator/split/split.h"
#include "runtime/common/error.h"
#include "runtime/common/family.h"
#include "runtime/common/pack.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxConfigBytes = 4 << 20;
/// For a question whose answer is wanted but not needed.
constexpr RetryPolicy kImpatient{.max_tries = 2, .connect_timeout = std::chrono::milliseconds(3000)};

/// Reads headers for exact sizes. A foreign engine's pack need not be one that we can read.
void look_into(const fs::path& folder, const Recipe& recipe, PackFacts& facts) {
  const bool ours = recipe.engine.kind == EngineKind::tandem;
  try {
    const Pack pack = Pack::open(folder);
    facts.config_json = pack.config_text();
    facts.content_hash = pack.content_hash();
    const int world_size = recipe.tensor_parallel;
    WeightSizes weights;
    weights.total_bytes = pack.tensor_bytes();
    const bool split = world_size > 1 && (ours || recipe.engine.split);
    if (split) {
      const LingConfig config = parse_ling_config(facts.config_json, (folder / "config.json").string());
      if (!why_not_divisible(config, world_size, recipe.pack.format == "exl3").empty()) return;  // the plan says so
      std::vector<int> ranks(static_cast<size_t>(world_size));
      std::iota(ranks.begin(), ranks.end(), 0);
      weights.rank_bytes = planned_rank_bytes(folder, world_size, ranks);
    } else {
      weights.rank_bytes.assign(static_cast<size_t>(world_size), weights.total_bytes);
    }
    facts.weights = std::move(weights);
  } catch (const Error&) {
    if (ours) throw;
  }
}

void list_folder(const fs::path& folder, PackFacts& facts) {
  std::error_code code;
  if (!fs::is_directory(folder, code))
    throw Error(ErrorKind::pack, "there is no folder " + printable(folder.string()), "pack.path", "correct the path");
  for (fs::directory_iterator it(folder, code), end; !code && it != end; it.increment(code))
    if (it->is_regular_file(code))
      facts.files.push_back({it->path().filename().string(), static_cast<int64_t>(it->file_size(code)), ""});
  std::sort(facts.files.begin(), facts.files.end(),
            [](const PlannedFile& a, const PlannedFile& b) { return a.name < b.name; });
}

struct Source {
  std::string repo;
  HubOptions hub;
};

Source source_of(const Recipe& recipe, const Cluster& cluster) {
  Source source{recipe.pack.repo, hub_options_from_environment()};
  if (!cluster.hub_endpoint.empty()) source.hub.endpoint = cluster.hub_endpoint;
  if (!recipe.pack.url.empty()) {
    const PackUrl url = parse_pack_url(recipe.pack.url);
    source.repo = url.repo;
    source.hub.endpoint = url.endpoint;
  }
  return source;
}

std::vector<PlannedFile> planned(const std::vector<HubFile>& files) {
  std::vector<PlannedFile> result;
  for (const HubFile& file : files) result.push_back({file.path, file.size, file.sha256});
  return result;
}

void ask_hub(const Source& source, const PackFactsOptions& options, const std::string& revision, PackFacts& facts,
             const std::atomic<bool>* cancel) {
  HubClient hub(source.hub, cancel);
  if (facts.commit.empty()) facts.commit = hub.resolve_commit(source.repo, revision);
  const std::vector<HubFile> files = hub.list_files(source.repo, facts.commit);
  if (!options.lock) facts.files = planned(files);
  for (const HubFile& file : files)
    if (file.path == "config.json") facts.config_json = hub.read_file(source.repo, facts.commit, file, kMaxConfigBytes);
}

}  // namespace

PackFacts gather_pack_facts(const Recipe& recipe, const Cluster& cluster, const PackFactsOptions& options,
                            const std::atomic<bool>* cancel) {
  PackFacts facts;
  if (!recipe.pack.path.empty()) {
    list_folder(recipe.pack.path, facts);
    look_into(recipe.pack.path, recipe, facts);
    return facts;
  }
  Source source = source_of(recipe, cluster);
  if (options.lock) {
    facts.commit = options.lock->commit;
    facts.files = options.lock->files;
  }
  const std::string revision = facts.commit.empty() ? recipe.pack.revision : facts.commit;
  const fs::path cache = options.hub_cache.empty() ? hub_cache_dir() : options.hub_cache;
  std::optional<Snapshot> cached = find_snapshot(cache, source.repo, revision);
  if (cached && cached->complete != true) cached.reset();
  // A branch may have moved since it was cached: only a commit can be looked up without asking.
  const bool ask = !options.offline && !(cached && is_commit(revision));
  if (ask) {
    if (cached) source.hub.retry = kImpatient;
    try {
      ask_hub(source, options, revision, facts, cancel);
      return facts;
    } catch (const Error& error) {
      if (!cached || error.kind() != ErrorKind::fetch) throw;
      facts.note = "the hub did not say what `" + printable(revision, 80) + "` is now (" + error.what() +
                   "); the downloaded commit serves";
    }
  }
  if (cached) {
    facts.commit = cached->commit;
    if (const auto files = load_file_list(cache, source.repo, cached->commit); files && !options.lock)
      facts.files = planned(*files);
    look_into(cached->path, recipe, facts);
  }
  return facts;
}

}  // namespace tandem
