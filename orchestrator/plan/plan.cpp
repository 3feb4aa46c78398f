// The plan, made step by step: places, pack, memory, ports, command lines, stages. Each step reads what the ones before
// settled; reasons against the plan are collected, so that all of them show at once.
#include "orchestrator/plan/plan.h"

#include <algorithm>
#include <set>

#include "orchestrator/fetch/cache.h"
#include "orchestrator/fetch/fetch.h"
#include "orchestrator/plan/memory.h"
#include "orchestrator/plan/rank_command.h"
#include "orchestrator/plan/stages.h"
#include "orchestrator/split/split.h"
#include "runtime/common/error.h"
#include "runtime/common/family.h"
#include "runtime/common/hash.h"
#include "runtime/common/units.h"

namespace tandem {
namespace {

constexpr int kFirstHttpPort = 8000;
constexpr int kFirstRendezvousPort = 29500;
constexpr int kPortsToTry = 100;

std::string count(size_t number, const std::string& noun) {
  return std::to_string(number) + " " + noun + (number == 1 ? "" : "s");
}

bool contains(const std::vector<std::string>& list, const std::string& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

class Planner {
 public:
  Planner(const Recipe& recipe, const Cluster& cluster, const std::vector<NodeFacts>& facts, const PackFacts& pack,
          bool offline)
      : recipe_(recipe), cluster_(cluster), facts_(facts), pack_(pack) {
    plan_.offline = offline;
  }

  Plan make() {
    plan_.recipe_name = recipe_.name;
    plan_.model_name = recipe_.model.name;
    plan_.engine = recipe_.engine.kind;
    plan_.world_size = recipe_.tensor_parallel;
    plan_.context_tokens = recipe_.engine.context_tokens;
    plan_.listen_address = cluster_.listen_address;
    plan_.ready_path = recipe_.engine.ready.path;
    place_ranks();
    find_pack();
    find_folders();
    size_weights();
    size_memory();
    choose_ports();
    write_commands();
    if (!recipe_.hooks.empty())
      block("the recipe asks for the hook `" + recipe_.hooks.front().name + "`, and this version runs no hooks",
            recipe_.hooks.front().where, "remove `hooks` from the recipe");
    check_disk();
    plan_.stages = plan_stages(plan_, recipe_, facts_);
    plan_.download_bytes_left = plan_.stage(StageName::fetch).bytes;
    settle_status();
    return std::move(plan_);
  }

 private:
  void place_ranks() {
    const int world_size = plan_.world_size;
    const int num_nodes = std::min<int>(world_size, static_cast<int>(cluster_.nodes.size()));
    for (int n = 0; n < num_nodes; ++n) {
      const ClusterNode& given = cluster_.nodes[static_cast<size_t>(n)];
      PlannedNode node;
      node.name = given.name;
      node.address = given.address;
      node.link_address = given.link_address;
      node.local = given.address == "127.0.0.1" || given.address == "localhost" || given.address == "::1";
      const NodeFacts& facts = facts_[static_cast<size_t>(n)];
      node.memory_bytes = facts.memory_available_bytes ? facts.memory_available_bytes : facts.memory_total_bytes;
      // Neighbouring ranks share a machine; the first machines take what does not divide.
      const int share = world_size / num_nodes + (n < world_size % num_nodes ? 1 : 0);
      const std::vector<std::string> devices = choose_devices(n, share);
      for (int i = 0; i < share; ++i) {
        PlannedRank rank;
        rank.rank = static_cast<int>(plan_.ranks.size());
        rank.node = n;
        rank.device = devices[static_cast<size_t>(i)];
        node.ranks.push_back(rank.rank);
        plan_.ranks.push_back(std::move(rank));
      }
      plan_.nodes.push_back(std::move(node));
    }
    plan_.rendezvous_address = plan_.nodes.front().link_address;
    plan_.start_order = recipe_.engine.start_order;
    plan_.start_together = plan_.start_order.empty();
    if (plan_.start_together)
      for (int r = 0; r < world_size; ++r) plan_.start_order.push_back(r);
    const int made_for = recipe_.hardware.nodes;
    if (made_for > static_cast<int>(plan_.nodes.size()))
      plan_.notes.push_back("the recipe was made for " + count(static_cast<size_t>(made_for), "machine") +
                            ", here are " + std::to_string(plan_.nodes.size()));
  }

  std::vector<std::string> choose_devices(int node, int ranks) {
    const std::vector<std::string>& allowed = cluster_.nodes[static_cast<size_t>(node)].devices;
    const NodeFacts& facts = facts_[static_cast<size_t>(node)];
    std::vector<std::string> cuda;
    for (const std::string& device : allowed.empty() ? facts.devices : allowed)
      if (device.starts_with("cuda:")) cuda.push_back(device);
    const std::string& wanted = recipe_.engine.device;
    if (wanted == "cpu" || (wanted == "auto" && cuda.empty()))
      return std::vector<std::string>(static_cast<size_t>(ranks), "cpu");
    if (static_cast<int>(cuda.size()) < ranks) {
      block("node " + facts.name + " gets " + count(static_cast<size_t>(ranks), "rank") + " but offers " +
                count(cuda.size(), "CUDA device"),
            recipe_.where("engine.device"),
            "use more machines, set engine.device: cpu, or run a tandem-runtime built with CUDA there");
      cuda.resize(static_cast<size_t>(ranks), "cuda:0");
    }
    return {cuda.begin(), cuda.begin() + ranks};
  }

  void find_pack() {
    const PackSection& pack = recipe_.pack;
    plan_.pack_path = pack.path;
    plan_.pack_repo = pack.repo;
    plan_.pack_endpoint = cluster_.hub_endpoint;
    if (!pack.url.empty()) {
      const PackUrl url = parse_pack_url(pack.url);
      plan_.pack_repo = url.repo;
      plan_.pack_endpoint = url.endpoint;
    }
    plan_.pack_revision = pack_.commit.empty() ? pack.revision : pack_.commit;
    plan_.files = pack_.files;
    for (const PlannedFile& file : plan_.files) plan_.download_bytes_total += file.bytes;
    if (!from_folder()) {
      plan_.pack_identity = plan_.pack_repo + "@" + plan_.pack_revision;
    } else {
      plan_.pack_identity = pack_.content_hash.empty() ? plan_.pack_path : pack_.content_hash;
    }
    plan_.split = plan_.world_size > 1 && (plan_.engine == EngineKind::tandem || recipe_.engine.split);
  }

  bool from_folder() const { return !plan_.pack_path.empty(); }

  void find_folders() {
    for (size_t n = 0; n < plan_.nodes.size(); ++n) {
      const NodeFacts& facts = facts_[n];
      plan_.nodes[n].pack_folder =
          from_folder()
              ? plan_.pack_path
              : (repo_cache_dir(facts.hub_cache, plan_.pack_repo) / "snapshots" / plan_.pack_revision).string();
    }
    if (plan_.split && from_folder()) {
      const std::string name = std::filesystem::path(plan_.pack_path).filename().string();
      plan_.split_base = pack_key(name, pack_.content_hash.empty() ? sha256_hex(plan_.pack_path) : pack_.content_hash);
    } else if (plan_.split) {
      plan_.split_base = pack_key(plan_.pack_repo, plan_.pack_revision);
    }
    for (PlannedRank& rank : plan_.ranks) {
      const auto n = static_cast<size_t>(rank.node);
      rank.folder =
          plan_.split ? rank_folder_path(facts_[n].ranks_folder, plan_.split_base, plan_.world_size, rank.rank).string()
                      : plan_.nodes[n].pack_folder;
    }
  }

  void size_weights() {
    try {
      config_ = find_config(recipe_, pack_);
    } catch (const Error& error) {
      // A foreign engine may serve what our runtime cannot read.
      if (plan_.engine == EngineKind::tandem) block(error.what(), error.where(), error.fix());
    }
    const int world_size = plan_.world_size;
    if (config_ && plan_.split) {
      for (const std::string& reason : why_not_divisible(*config_, world_size, recipe_.pack.format == "exl3")) {
        block(reason, recipe_.where("parallel.tensor"), "choose another parallel.tensor");
        divides_ = false;
      }
    }
    if (!pack_.note.empty()) plan_.notes.push_back(pack_.note);
    if (pack_.weights) {
      plan_.weights = *pack_.weights;
    } else {
      plan_.weights_estimated = true;
      plan_.weights = config_ && (divides_ || !plan_.split)
                          ? estimate_weights(*config_, recipe_.pack, plan_.split ? world_size : 1)
                          : estimate_weights(recipe_.pack, world_size);
      if (!config_ && plan_.engine == EngineKind::tandem)
        plan_.notes.push_back(
            recipe_.pack.download_bytes
                ? "the model's shapes are not known yet: weights are the download's size over the ranks"
                : "the model's shapes are not known yet: memory cannot be planned before the download");
    }
    plan_.weights.rank_bytes.resize(static_cast<size_t>(world_size),
                                    plan_.weights.rank_bytes.empty() ? 0 : plan_.weights.rank_bytes.front());
    if (plan_.files.empty()) plan_.download_bytes_total = from_folder() ? 0 : plan_.weights.total_bytes;
  }

  void size_memory() {
    for (PlannedRank& rank : plan_.ranks) {
      const auto r = static_cast<size_t>(rank.rank);
      if (plan_.engine == EngineKind::command) {
        rank.memory.weights_bytes = recipe_.resident_bytes;
        rank.memory_known = recipe_.resident_bytes != 0;
      } else if (config_ && divides_) {
        rank.memory = rank_memory(*config_, recipe_.engine, plan_.weights.rank_bytes[r], plan_.world_size);
      } else {
        rank.memory.weights_bytes = plan_.weights.rank_bytes[r];
        rank.memory_known = false;
      }
    }
    for (PlannedNode& node : plan_.nodes) {
      // A node keeps one floor free, however many ranks it has: the largest of theirs, shared out among them.
      int64_t floor = 0;
      for (int r : node.ranks) floor = std::max(floor, recipe_.rank_floor_bytes[static_cast<size_t>(r)]);
      for (int r : node.ranks) {
        MemoryTable& memory = plan_.ranks[static_cast<size_t>(r)].memory;
        const auto share = static_cast<int64_t>(node.ranks.size());
        memory.floor_bytes = floor / share + (r == node.ranks.front() ? floor % share : 0);
        node.memory_needed_bytes += memory.total();
      }
    }
    find_largest_context();
    check_memory();
  }

  /// The model's own limit: what its positions can express, whatever the memory.
  int64_t model_context() const {
    int64_t limit = recipe_.model.maximum_context_tokens ? recipe_.model.maximum_context_tokens
                                                         : recipe_.model.native_context_tokens;
    if (config_) {
      double positions = static_cast<double>(config_->max_position_embeddings);
      if (config_->rope_scaling)
        positions = std::max(positions, static_cast<double>(config_->rope_scaling->original_max_position_embeddings) *
                                            config_->rope_scaling->factor);
      const auto own = static_cast<int64_t>(std::min(positions, 1e15));
      limit = limit ? std::min(limit, own) : own;
    }
    return limit;
  }

  void find_largest_context() {
    const bool known = std::all_of(plan_.ranks.begin(), plan_.ranks.end(), [](const PlannedRank& r) {
      return r.memory_known && r.memory.kv_bytes_per_token > 0;
    });
    if (!known) return;
    int64_t largest = model_context();
    for (const PlannedNode& node : plan_.nodes) {
      if (node.memory_bytes == 0) return;
      int64_t fixed = 0, per_token = 0;
      for (int r : node.ranks) {
        const MemoryTable& memory = plan_.ranks[static_cast<size_t>(r)].memory;
        fixed += memory.total() - memory.kv_bytes;
        per_token += memory.kv_bytes_per_token * recipe_.engine.slots;
      }
      largest = std::min(largest, std::max<int64_t>(0, node.memory_bytes - fixed) / per_token);
    }
    constexpr int64_t kStep = 256;  // a round number rather than the last token
    plan_.largest_context_tokens = largest >= kStep ? largest / kStep * kStep : 0;
  }

  void check_memory() {
    if (const int64_t limit = model_context();
        config_ && plan_.engine == EngineKind::tandem && plan_.context_tokens > limit)
      block("the context of " + std::to_string(plan_.context_tokens) + " tokens is above the pack's " +
                std::to_string(limit),
            recipe_.where("engine.context"), "set engine.context to " + std::to_string(limit) + " or less");
    for (size_t n = 0; n < plan_.nodes.size(); ++n) {
      const PlannedNode& node = plan_.nodes[n];
      if (node.memory_bytes == 0 || node.memory_needed_bytes <= node.memory_bytes || facts_[n].job) continue;
      const std::string fix = plan_.largest_context_tokens
                                  ? "set engine.context to " + std::to_string(plan_.largest_context_tokens) + " or less"
                                  : "use more ranks on more machines, a smaller pack, or free memory there";
      block("node " + node.name + " needs " + format_bytes(node.memory_needed_bytes) + " and has " +
                format_bytes(node.memory_bytes) + (facts_[n].assumed ? "" : " available"),
            recipe_.where("engine.context"), fix);
    }
  }

  void choose_ports() {
    const NodeFacts& head = facts_.front();
    const RunningJob job = head.job.value_or(RunningJob{});
    std::set<int> taken(head.ports_in_use.begin(), head.ports_in_use.end());
    plan_.http_port = choose_port(cluster_.http_port, job.http_port, kFirstHttpPort, taken, "ports.http");
    taken.insert(plan_.http_port);
    plan_.rendezvous_port =
        choose_port(cluster_.rendezvous_port, job.rendezvous_port, kFirstRendezvousPort, taken, "ports.rendezvous");
  }

  int choose_port(int fixed, int running, int first, const std::set<int>& taken, const std::string& key) {
    if (fixed != 0) {
      if (taken.contains(fixed))
        block("port " + std::to_string(fixed) + " of node " + plan_.nodes.front().name + " is in use", "cluster." + key,
              "stop what uses it, or choose another with --set cluster." + key + "=PORT");
      return fixed;
    }
    if (running != 0 && !taken.contains(running)) return running;
    for (int port = first; port < first + kPortsToTry; ++port)
      if (!taken.contains(port)) return port;
    block("ports " + std::to_string(first) + " to " + std::to_string(first + kPortsToTry - 1) + " of node " +
              plan_.nodes.front().name + " are all in use",
          "cluster." + key, "choose one with --set cluster." + key + "=PORT");
    return first;
  }

  void write_commands() {
    for (PlannedRank& rank : plan_.ranks) {
      const auto n = static_cast<size_t>(rank.node);
      const auto share = static_cast<int>(plan_.nodes[n].ranks.size());
      const int threads = recipe_.engine.threads ? recipe_.engine.threads : std::max(1, facts_[n].cores / share);
      const RankSettings settings{recipe_, cluster_, plan_, rank, threads};
      if (plan_.engine == EngineKind::command) {
        rank.program = foreign_program(n);
        rank.argv = command_arguments(settings);
      } else {
        rank.program = facts_[n].runtime_program;
        rank.argv = runtime_arguments(settings);
        check_runtime(n, rank);
      }
      rank.env = rank_environment(settings);
    }
  }

  std::string foreign_program(size_t node) {
    const std::string& name = recipe_.engine.program;
    const auto it = cluster_.programs.find(name);
    if (it == cluster_.programs.end()) {
      if (!plan_.offline)
        block_once("it is not known where `" + name + "` is installed", recipe_.where("engine.program"),
                   "add `programs: {" + name + ": /path/to/" + name +
                       "}` to the cluster file, or --set cluster.programs." + name + "=PATH");
      return "";
    }
    if (contains(facts_[node].missing_programs, it->second))
      block("there is no program " + it->second + " on node " + facts_[node].name, "cluster.programs." + name,
            "install it there, or correct the path");
    return it->second;
  }

  void check_runtime(size_t node, const PlannedRank& rank) {
    const NodeFacts& facts = facts_[node];
    if (plan_.offline) return;
    if (facts.runtime_program.empty())
      block_once("tandem-runtime is not installed on node " + facts.name, "", "install it beside `tandem`");
    if (facts.runtime_options.empty()) return;
    for (const std::string& argument : rank.argv)
      if (argument.starts_with("--") && !contains(facts.runtime_options, argument))
        block_once("tandem-runtime on node " + facts.name + " does not know " + argument,
                   recipe_.where(place_of_flag(argument)), "remove that setting, or install a newer tandem-runtime");
  }

  static std::string place_of_flag(const std::string& flag) {
    if (flag == "--loop-guard") return "engine.loop_guard";
    if (flag == "--temperature" || flag == "--top-p" || flag == "--top-k" || flag == "--min-p")
      return "engine.sampling";
    if (flag == "--mtp-adaptive" || flag == "--mtp-depth") return "engine.mtp.depth";
    return "engine";
  }

  void check_disk() {
    std::vector<int64_t> to_write(plan_.nodes.size());
    if (plan_.split)
      for (int r : missing_rank_folders(plan_, facts_))
        to_write[static_cast<size_t>(plan_.ranks[static_cast<size_t>(r)].node)] +=
            plan_.weights.rank_bytes[static_cast<size_t>(r)];
    for (size_t n = 0; n < to_write.size(); ++n)
      if (facts_[n].disk_free_bytes != 0 && to_write[n] > facts_[n].disk_free_bytes)
        block("node " + facts_[n].name + " needs " + format_bytes(to_write[n]) +
                  " of disk for its rank folders and has " + format_bytes(facts_[n].disk_free_bytes) + " free",
              facts_[n].ranks_folder, "free space there, or choose another folder (nodes[].folders.ranks)");
  }

  void settle_status() {
    const bool all_skipped =
        std::all_of(plan_.stages.begin(), plan_.stages.end(), [](const PlannedStage& s) { return s.skip; });
    plan_.status = !plan_.blocked.empty() ? PlanStatus::blocked
                   : all_skipped          ? PlanStatus::nothing_to_do
                                          : PlanStatus::changes;
  }

  void block(std::string what, std::string where, std::string fix) {
    plan_.blocked.push_back({std::move(what), std::move(where), std::move(fix)});
  }

  /// For reasons that every rank would repeat.
  void block_once(std::string what, std::string where, std::string fix) {
    for (const PlanReason& reason : plan_.blocked)
      if (reason.what == what) return;
    block(std::move(what), std::move(where), std::move(fix));
  }

  const Recipe& recipe_;
  const Cluster& cluster_;
  const std::vector<NodeFacts>& facts_;
  const PackFacts& pack_;
  std::optional<LingConfig> config_;
  bool divides_ = true;
  Plan plan_;
};

}  // namespace

int plan_exit_code(PlanStatus status) {
  switch (status) {
    case PlanStatus::nothing_to_do:
      return 0;
    case PlanStatus::changes:
      return 10;
    case PlanStatus::blocked:
      return 2;
  }
  return 1;
}

const PlannedStage& Plan::stage(StageName name) const {
  for (const PlannedStage& stage : stages)
    if (stage.stage == name) return stage;
  throw Error(ErrorKind::internal, "the plan has no stage " + std::string(stage_name(name)));
}

Plan make_plan(const Recipe& recipe, const Cluster& cluster, const std::vector<NodeFacts>& facts, const PackFacts& pack,
               bool offline) {
  if (facts.size() != cluster.nodes.size())
    throw Error(ErrorKind::internal, "facts of " + std::to_string(facts.size()) + " nodes for a cluster of " +
                                         std::to_string(cluster.nodes.size()));
  return Planner(recipe, cluster, facts, pack, offline).make();
}

Cluster assumed_cluster(const Recipe& recipe, const Cluster& cluster) {
  if (!cluster.is_default || recipe.hardware.nodes < 2) return cluster;
  Cluster assumed = cluster;
  assumed.nodes.clear();
  for (int n = 0; n < recipe.hardware.nodes; ++n) {
    ClusterNode node;
    node.name = node.address = node.link_address = "node-" + std::to_string(n);
    assumed.nodes.push_back(std::move(node));
  }
  return assumed;
}

std::vector<NodeFacts> assumed_facts(const Recipe& recipe, const Cluster& cluster) {
  std::vector<NodeFacts> all;
  for (const ClusterNode& node : cluster.nodes) {
    NodeFacts facts;
    facts.name = node.name;
    facts.assumed = true;
    facts.memory_total_bytes = recipe.hardware.node_memory_bytes;
    facts.hub_cache = node.hub_cache.empty() ? "HUB_CACHE" : node.hub_cache;
    facts.ranks_folder = node.ranks_folder.empty() ? "RANKS" : node.ranks_folder;
    facts.state_folder = node.state_folder.empty() ? "STATE" : node.state_folder;
    if (!recipe.hardware.accelerator.empty())
      for (int i = 0; i < recipe.hardware.accelerators; ++i) facts.devices.push_back("cuda:" + std::to_string(i));
    all.push_back(std::move(facts));
  }
  return all;
}

}  // namespace tandem
