#include "orchestrator/plan/stages.h"

#include <algorithm>
#include <optional>

#include "runtime/common/hash.h"
#include "runtime/common/shard.h"
#include "runtime/common/units.h"

namespace tandem {
namespace {

std::string count(size_t number, const std::string& noun) {
  return std::to_string(number) + " " + noun + (number == 1 ? "" : "s");
}

bool contains(const std::vector<std::string>& list, const std::string& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

/// Hash of a list of texts that no other list shares: each goes in with its length.
class KeyHash {
 public:
  KeyHash& add(std::string_view text) {
    hasher_.update(std::to_string(text.size()) + ":");
    hasher_.update(text);
    return *this;
  }
  KeyHash& add(size_t number) { return add(std::to_string(number)); }
  std::string hex() { return hasher_.finish_hex(); }

 private:
  Hasher hasher_;
};

PlannedStage fetch_stage(const Plan& plan, const NodeFacts& head, bool ranks_there) {
  PlannedStage stage{StageName::fetch};
  KeyHash key;
  key.add("fetch").add(plan.pack_identity);
  for (const PlannedFile& file : plan.files) key.add(file.name).add(static_cast<size_t>(file.bytes)).add(file.sha256);
  stage.key = key.hex();
  int64_t left = plan.files.empty() ? plan.download_bytes_total : 0;
  size_t files_left = 0;
  for (const PlannedFile& file : plan.files) {
    if (contains(head.cached_files, file.name)) continue;
    left += file.bytes;
    ++files_left;
  }
  stage.skip = true;
  if (!plan.pack_path.empty()) {
    stage.summary = "the pack is a folder";
  } else if (ranks_there) {
    stage.summary = "not needed: every rank has its folder";
  } else if (!plan.files.empty() && files_left == 0) {
    stage.summary =
        "all " + count(plan.files.size(), "file") + " are there, " + format_bytes(plan.download_bytes_total);
  } else {
    stage.skip = false;
    stage.bytes = left;
    stage.summary = plan.files.empty() ? "download about " + format_bytes(left)
                                       : "download " + std::to_string(files_left) + " of " +
                                             count(plan.files.size(), "file") + ", " + format_bytes(left);
  }
  return stage;
}

PlannedStage split_stage(const Plan& plan, const std::vector<int>& missing) {
  PlannedStage stage{StageName::split};
  KeyHash key;
  key.add("split").add(plan.pack_identity).add(kSplitLayoutVersion).add(static_cast<size_t>(plan.world_size));
  stage.key = key.hex();
  stage.skip = !plan.split || missing.empty();
  if (plan.world_size == 1) {
    stage.summary = "one rank serves the pack as it is";
  } else if (!plan.split) {
    stage.summary = "every rank reads the whole pack";
  } else if (missing.empty()) {
    stage.summary = "all " + count(plan.ranks.size(), "rank folder") + " are there";
  } else {
    for (int r : missing) stage.bytes += plan.weights.rank_bytes[static_cast<size_t>(r)];
    stage.summary = "write " + count(missing.size(), "rank folder") + ", " + format_bytes(stage.bytes);
  }
  return stage;
}

PlannedStage link_stage(const Plan& plan, const Recipe& recipe, bool running) {
  PlannedStage stage{StageName::link};
  KeyHash key;
  key.add("link").add(recipe.hardware.transport);
  for (const PlannedNode& node : plan.nodes) key.add(node.link_address);
  stage.key = key.hex();
  stage.skip = running || plan.world_size == 1;
  stage.summary = plan.world_size == 1 ? "one rank has no link"
                  : running            ? "the ranks are connected"
                                       : "measure the link between " + count(plan.ranks.size(), "rank");
  return stage;
}

std::string launch_key(const Plan& plan) {
  KeyHash key;
  key.add("launch").add(plan.recipe_name).add(plan.pack_identity).add(kSplitLayoutVersion);
  for (const PlannedRank& rank : plan.ranks) {
    key.add(plan.nodes[static_cast<size_t>(rank.node)].address).add(rank.program);
    key.add(rank.argv.size());
    for (const std::string& argument : rank.argv) key.add(argument);
    key.add(rank.env.size());
    for (const auto& [name, value] : rank.env) key.add(name).add(value);
  }
  for (int rank : plan.start_order) key.add(static_cast<size_t>(rank));
  return key.hex();
}

PlannedStage launch_stage(const Plan& plan, std::string key, bool running, const std::optional<RunningJob>& other) {
  const std::string ranks = count(plan.ranks.size(), "rank");
  PlannedStage stage{StageName::launch, std::move(key), running, "", 0};
  if (running) {
    stage.summary = ranks + (plan.ranks.size() == 1 ? " runs" : " run");
  } else if (!other) {
    stage.summary = "start " + ranks;
  } else if (other->ready) {  // somebody may be using it
    stage.summary = "it serves with other settings: `tandem down " + plan.recipe_name + "` first, then start " + ranks;
  } else {
    stage.summary = "stop what is left of an earlier start, then start " + ranks;
  }
  return stage;
}

PlannedStage health_stage(const Recipe& recipe, const std::string& launch_key, bool ready) {
  PlannedStage stage{StageName::health};
  KeyHash key;
  key.add("health").add(launch_key);
  for (const Probe& probe : recipe.health.probes)
    key.add(probe.prompt).add(static_cast<size_t>(probe.max_tokens)).add(probe.expect).add(probe.thinking ? 1 : 0);
  stage.key = key.hex();
  stage.skip = ready;
  stage.summary = ready ? "ready" : "wait until ready, then judge " + count(recipe.health.probes.size(), "answer");
  return stage;
}

}  // namespace

std::string_view stage_name(StageName stage) {
  switch (stage) {
    case StageName::fetch:
      return "fetch";
    case StageName::split:
      return "split";
    case StageName::link:
      return "link";
    case StageName::launch:
      return "launch";
    case StageName::health:
      return "health";
  }
  return "";
}

std::vector<int> missing_rank_folders(const Plan& plan, const std::vector<NodeFacts>& facts) {
  std::vector<int> missing;
  for (const PlannedRank& rank : plan.ranks)
    if (!contains(facts[static_cast<size_t>(rank.node)].rank_folders, rank.folder)) missing.push_back(rank.rank);
  return missing;
}

std::vector<PlannedStage> plan_stages(const Plan& plan, const Recipe& recipe, const std::vector<NodeFacts>& facts) {
  const std::string key = launch_key(plan);
  const std::vector<int> missing = plan.split ? missing_rank_folders(plan, facts) : std::vector<int>();
  bool running = true;
  std::optional<RunningJob> job;
  for (size_t n = 0; n < plan.nodes.size(); ++n) {
    running = running && facts[n].job && facts[n].job->launch_key == key;
    if (facts[n].job && (!job || facts[n].job->ready)) job = facts[n].job;
  }
  const bool ready = running && facts.front().job->ready;
  return {fetch_stage(plan, facts.front(), plan.split && missing.empty()), split_stage(plan, missing),
          link_stage(plan, recipe, running), launch_stage(plan, key, running, job), health_stage(recipe, key, ready)};
}

}  // namespace tandem
