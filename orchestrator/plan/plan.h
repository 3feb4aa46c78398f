#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "orchestrator/recipe/recipe.h"

namespace tandem {

// The plan: everything `up` will do, computed from the recipe, the cluster and facts about nodes and pack before a byte
// moves. make_plan is pure: no files, no network, no clock; the same inputs give the same plan.

// ---- What the plan is told --------------------------------------------------------------------------------------

struct PlannedFile {
  std::string name;  ///< relative to the pack's folder
  int64_t bytes = 0;
  std::string sha256;  ///< hex; "" when unknown

  bool operator==(const PlannedFile&) const = default;
};

/// Bytes of weights by component ("routed_experts", "kda_attention", ...), for the whole pack and for each rank.
struct WeightSizes {
  int64_t total_bytes = 0;
  std::vector<int64_t> rank_bytes;
  std::map<std::string, int64_t> component_bytes;  ///< of the whole pack; empty when measured from headers
};

/// What is known of the pack. Everything may be missing: --offline with nothing downloaded knows the recipe alone.
struct PackFacts {
  std::string commit;                  ///< 40 hex digits; "" for a folder, or when the hub was not asked
  std::vector<PlannedFile> files;      ///< empty: unknown
  std::string content_hash;            ///< Pack::content_hash(); for a folder only
  std::string config_json;             ///< text of the pack's config.json; "" when unknown
  std::optional<WeightSizes> weights;  ///< measured from the headers for the recipe's world size; else estimated
  std::string note;                    ///< for the reader of the plan; "" = none
};

struct RunningJob {
  std::string launch_key;  ///< of the plan that started it
  bool ready = false;
  int http_port = 0;
  int rendezvous_port = 0;
};

struct NodeFacts {
  std::string name;      ///< as in the cluster
  bool assumed = false;  ///< --offline: taken from the recipe's hardware section
  int64_t memory_total_bytes = 0;
  int64_t memory_available_bytes = 0;  ///< without what a running job of this recipe holds; 0: unknown
  int64_t disk_free_bytes = 0;         ///< where ranks_folder is; 0: unknown
  int cores = 1;
  std::vector<std::string> devices = {"cpu"};         ///< what its tandem-runtime offers: "cpu", "cuda:0", ...
  std::vector<int> ports_in_use;                      ///< not counting those of a running job of this recipe
  std::string hub_cache, ranks_folder, state_folder;  ///< absolute, defaults resolved on the node
  std::string runtime_program;                        ///< absolute path of tandem-runtime; "": not found
  std::vector<std::string> runtime_options;           ///< flags it accepts ("--mtp-depth"); empty: unknown
  std::vector<std::string> missing_programs;          ///< engine programs (absolute) that do not exist there
  std::vector<std::string> cached_files;              ///< files of this pack's commit that are whole in hub_cache
  std::vector<std::string> rank_folders;              ///< absolute paths of whole rank folders (manifest present)
  std::optional<RunningJob> job;                      ///< of this recipe's name, if its ranks run
};

// ---- What it answers ---------------------------------------------------------------------------------------------

/// Memory of one rank. Sum: total().
struct MemoryTable {
  int64_t weights_bytes = 0;
  int64_t kv_bytes_per_token = 0;
  int64_t kv_bytes = 0;  ///< kv_bytes_per_token x context x slots
  int64_t state_bytes_per_slot = 0;
  int64_t state_bytes = 0;  ///< recurrent state and short-convolution tails of all slots
  int64_t workspace_bytes = 0;
  int64_t communication_bytes = 0;
  int64_t floor_bytes = 0;  ///< this rank's share of what the node keeps free

  int64_t total() const {
    return weights_bytes + kv_bytes + state_bytes + workspace_bytes + communication_bytes + floor_bytes;
  }
};

struct PlannedRank {
  int rank = 0;
  int node = 0;                            ///< index into Plan::nodes
  std::string device;                      ///< "cpu", "cuda:0"
  std::string folder;                      ///< what --pack names: a rank folder, or the whole pack
  std::string program;                     ///< absolute path; "" when unknown (--offline)
  std::vector<std::string> argv;           ///< arguments after the program
  std::map<std::string, std::string> env;  ///< added to the supervisor's environment
  MemoryTable memory;
  bool memory_known = true;  ///< false: a foreign engine that states no memory.resident
};

struct PlannedNode {
  std::string name, address, link_address;
  bool local = true;
  std::vector<int> ranks;
  int64_t memory_bytes = 0;         ///< what it has; 0: unknown
  int64_t memory_needed_bytes = 0;  ///< its ranks' tables together
  std::string pack_folder;          ///< where the pack lies, or will lie, on this node
};

enum class StageName { fetch, split, link, launch, health };
std::string_view stage_name(StageName stage);

/// One stage of `up`. `key` names its result by content: equal keys, equal results.
struct PlannedStage {
  StageName stage{};
  std::string key;      ///< 64 hex digits
  bool skip = false;    ///< what it would do is true already
  std::string summary;  ///< "download 3 of 10 files, 14.1 MiB"; "2 rank folders are there"
  int64_t bytes = 0;    ///< to download / write / send
};

struct PlanReason {
  std::string what, where, fix;  ///< as in Error
};

enum class PlanStatus { nothing_to_do, changes, blocked };
int plan_exit_code(PlanStatus status);  ///< 0, 10, 2

struct Plan {
  std::string recipe_name, model_name;
  int world_size = 1;
  EngineKind engine = EngineKind::tandem;
  bool offline = false;

  // Source of the pack: repo (+ endpoint, "" = the fetch room's own choice) at commit-or-revision, or a folder.
  std::string pack_repo, pack_endpoint, pack_revision, pack_path;
  std::string pack_identity;         ///< names the pack's content, as far as it is known: part of every key
  std::vector<PlannedFile> files;    ///< what fetch leaves on the disk; empty when unknown
  int64_t download_bytes_total = 0;  ///< the whole pack, estimated when `files` is empty
  int64_t download_bytes_left = 0;

  std::vector<PlannedNode> nodes;
  std::vector<PlannedRank> ranks;  ///< in rank order
  std::vector<int> start_order;    ///< every rank once
  bool start_together = true;      ///< false: each waits until the one before it runs
  std::string listen_address;
  int http_port = 0, rendezvous_port = 0;
  std::string rendezvous_address;  ///< link address of rank 0's node
  std::string ready_path;          ///< GET there answers 200 when ready
  bool split = false;              ///< ranks have folders of their own, named by split_base
  std::string split_base;          ///< the pack_key of the split room; "" when nothing is split

  int64_t context_tokens = 0;
  int64_t largest_context_tokens = 0;  ///< that fits above the floor; 0: none, or unknown
  WeightSizes weights;
  bool weights_estimated = false;  ///< from bits and shapes rather than from headers

  std::vector<PlannedStage> stages;  ///< in running order
  std::vector<std::string> hooks;    ///< "pre_launch warm-up (controller)"
  std::vector<PlanReason> blocked;   ///< why it cannot run; empty unless status is blocked
  std::vector<std::string> notes;

  PlanStatus status = PlanStatus::changes;

  const PlannedStage& stage(StageName name) const;
};

/// @param facts  one per cluster node, same order
Plan make_plan(const Recipe& recipe, const Cluster& cluster, const std::vector<NodeFacts>& facts, const PackFacts& pack,
               bool offline);

/// Facts for --offline: nodes as the recipe's hardware section describes them, empty disks, free ports. With a default
/// cluster and no hardware section, one node of unknown memory.
std::vector<NodeFacts> assumed_facts(const Recipe& recipe, const Cluster& cluster);
/// The cluster an offline plan uses when none is given: this machine, or hardware.nodes machines named node-0, node-1.
Cluster assumed_cluster(const Recipe& recipe, const Cluster& cluster);

/// The plan for people: a few tables, ending with what it would do or why it cannot.
std::string plan_text(const Plan& plan);
/// The plan for programs; "schema_version" first.
nlohmann::ordered_json plan_json(const Plan& plan);

}  // namespace tandem
