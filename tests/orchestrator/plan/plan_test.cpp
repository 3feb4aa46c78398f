#include "orchestrator/plan/plan.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "orchestrator/plan/commands.h"
#include "orchestrator/recipe/load.h"
#include "runtime/common/error.h"
#include "tests/catch.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr double kGiB = 1024.0 * 1024 * 1024;
const fs::path kRecipes = fs::path(TANDEM_SOURCE_DIR) / "recipes";
const fs::path kTinyPack = fs::path(TANDEM_SOURCE_DIR) / "examples" / "packs" / "ling-tiny-exl3-3.64bpw";

LoadedRecipe shipped(const std::string& name, std::vector<std::string> sets = {}) {
  return load_recipe({.recipe = kRecipes / (name + ".yaml"), .cluster = {}, .sets = std::move(sets)});
}

Plan offline(const LoadedRecipe& loaded, const PackFacts& pack = {}) {
  const Cluster cluster = assumed_cluster(loaded.recipe, loaded.cluster);
  return make_plan(loaded.recipe, cluster, assumed_facts(loaded.recipe, cluster), pack, true);
}

/// A machine on which nothing is in the way.
NodeFacts machine() {
  NodeFacts facts;
  facts.name = "local";
  facts.memory_total_bytes = int64_t{8} << 30;
  facts.memory_available_bytes = int64_t{6} << 30;
  facts.disk_free_bytes = int64_t{50} << 30;
  facts.cores = 4;
  facts.hub_cache = "/hub";
  facts.ranks_folder = "/ranks";
  facts.state_folder = "/state";
  facts.runtime_program = "/usr/bin/tandem-runtime";
  return facts;
}

const std::string kCommit = "0123456789abcdef0123456789abcdef01234567";

/// The tiny pack as the hub would describe it.
PackFacts tiny_pack() {
  LoadedRecipe loaded = shipped("ling-tiny-3.64bpw", {"pack.path=" + kTinyPack.string()});
  PackFacts pack = gather_pack_facts(loaded.recipe, loaded.cluster, {.offline = true, .hub_cache = "", .lock = {}});
  pack.commit = kCommit;
  pack.content_hash.clear();
  return pack;
}

Plan plan_tiny(const std::vector<std::string>& sets, const NodeFacts& facts, const PackFacts& pack = tiny_pack()) {
  const LoadedRecipe loaded = shipped("ling-tiny-3.64bpw", sets);
  return make_plan(loaded.recipe, loaded.cluster, {facts}, pack, false);
}

std::string reasons(const Plan& plan) {
  std::string text;
  for (const PlanReason& reason : plan.blocked) text += reason.what + "\n";
  return text;
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("the shipped recipe of Ling-3.1 on two Sparks plans its published sizes, and its context fits", "[plan]") {
  const Plan plan = offline(shipped("ling-3.1-flash-1019-3.03bpw-2x-dgx-spark"));
  REQUIRE(plan.ranks.size() == 2);
  REQUIRE(plan.nodes.size() == 2);
  CHECK(plan.status == PlanStatus::changes);
  CHECK(plan.weights_estimated);
  for (const PlannedRank& rank : plan.ranks) {
    CHECK(static_cast<double>(rank.memory.weights_bytes) / kGiB == Approx(103.4).epsilon(0.03));
    CHECK(rank.memory.kv_bytes_per_token == 10 * 576 * 2);  // 9 MLA layers and the MTP layer, bf16, whole on each rank
    CHECK(rank.memory.kv_bytes == int64_t{11520} * 262144);
    CHECK(rank.memory.state_bytes == Approx(63.0 * (32 * 128 * 128 * 4 + 3 * 3 * 32 * 128 * 2)));
    CHECK(rank.memory.floor_bytes == int64_t{2} << 30);
    CHECK(rank.memory.total() < static_cast<int64_t>(123.79 * kGiB));
    CHECK(rank.device == "cuda:0");
  }
  CHECK(static_cast<double>(plan.download_bytes_total) / 1e9 == Approx(220.6).epsilon(0.03));
  CHECK(plan.context_tokens == 262144);
  CHECK(plan.largest_context_tokens == 262144);
  CHECK(plan.stage(StageName::fetch).bytes == plan.download_bytes_total);
}

TEST_CASE("a context that the memory cannot hold is blocked with the largest one that fits", "[plan]") {
  const Plan plan = offline(shipped("ling-3.1-flash-1019-3.03bpw-2x-dgx-spark", {"hardware.node.memory=108GiB"}));
  CHECK(plan.status == PlanStatus::blocked);
  CHECK(plan_exit_code(plan.status) == 2);
  CHECK(plan.largest_context_tokens > 0);
  CHECK(plan.largest_context_tokens < 262144);
  REQUIRE(plan.blocked.size() == 2);  // one a node
  CHECK(says(plan.blocked[0].what, "node node-0 needs 109.0 GiB and has 108.0 GiB"));
  CHECK(plan.blocked[0].fix == "set engine.context to " + std::to_string(plan.largest_context_tokens) + " or less");
  CHECK(says(plan.blocked[0].where, "2x-dgx-spark.yaml:9:12 (engine.context)"));

  const Plan smaller = offline(
      shipped("ling-3.1-flash-1019-3.03bpw-2x-dgx-spark",
              {"hardware.node.memory=108GiB", "engine.context=" + std::to_string(plan.largest_context_tokens)}));
  CHECK(smaller.status == PlanStatus::changes);
}

TEST_CASE("ranks that cut through 128-wide blocks or heads are refused before a byte moves", "[plan]") {
  const Plan four = offline(shipped("ling-3.1-flash-1019-3.03bpw-2x-dgx-spark", {"parallel.tensor=4"}));
  CHECK(four.status == PlanStatus::blocked);
  CHECK(says(reasons(four), "128"));
  const Plan three = offline(shipped("ling-3.1-flash-1019-3.03bpw-2x-dgx-spark", {"parallel.tensor=3"}));
  CHECK(three.status == PlanStatus::blocked);
  CHECK(says(reasons(three), "64"));
  CHECK(std::any_of(three.blocked.begin(), three.blocked.end(),
                    [](const PlanReason& reason) { return says(reason.where, "--set parallel.tensor"); }));
}

TEST_CASE("two ranks on one machine get its exact command lines, the cores shared", "[plan]") {
  const Plan plan = plan_tiny({}, machine());
  REQUIRE(plan.ranks.size() == 2);
  const std::string folder = "/ranks/" + plan.split_base + "-l1-tp2/rank";
  CHECK(plan.ranks[0].program == "/usr/bin/tandem-runtime");
  CHECK(plan.ranks[0].argv == std::vector<std::string>{"serve",
                                                       "--pack",
                                                       folder + "0",
                                                       "--rank",
                                                       "0",
                                                       "--world-size",
                                                       "2",
                                                       "--rendezvous",
                                                       "127.0.0.1:29500",
                                                       "--listen",
                                                       "127.0.0.1:8000",
                                                       "--device",
                                                       "cpu",
                                                       "--context",
                                                       "4096",
                                                       "--mtp-depth",
                                                       "0",
                                                       "--kv-cache",
                                                       "fp32",
                                                       "--slots",
                                                       "1",
                                                       "--memory-floor",
                                                       "268435456",
                                                       "--model-name",
                                                       "ling-tiny",
                                                       "--threads",
                                                       "2",
                                                       "--peer-timeout",
                                                       "10"});
  CHECK(plan.ranks[1].argv == std::vector<std::string>{"serve",
                                                       "--pack",
                                                       folder + "1",
                                                       "--rank",
                                                       "1",
                                                       "--world-size",
                                                       "2",
                                                       "--rendezvous",
                                                       "127.0.0.1:29500",
                                                       "--device",
                                                       "cpu",
                                                       "--context",
                                                       "4096",
                                                       "--mtp-depth",
                                                       "0",
                                                       "--kv-cache",
                                                       "fp32",
                                                       "--slots",
                                                       "1",
                                                       "--memory-floor",
                                                       "268435456",
                                                       "--model-name",
                                                       "ling-tiny",
                                                       "--threads",
                                                       "2",
                                                       "--peer-timeout",
                                                       "10"});
  CHECK(plan.ranks[0].env.empty());
  CHECK(plan.nodes[0].pack_folder == "/hub/models--tandem--ling-tiny-exl3-3.64bpw/snapshots/" + kCommit);
  CHECK_FALSE(plan.weights_estimated);
  CHECK(plan.ranks[0].memory.weights_bytes > 7'000'000);
  // One floor for the machine, shared by its ranks.
  CHECK(plan.ranks[0].memory.floor_bytes + plan.ranks[1].memory.floor_bytes == int64_t{256} << 20);
}

TEST_CASE("settings of a recipe reach the runtime as flags", "[plan]") {
  const Plan plan = offline(shipped("ling-3.1-flash-1019-3.03bpw-2x-dgx-spark"));
  const std::vector<std::string>& argv = plan.ranks[0].argv;
  const auto value_of = [&](const std::string& flag) {
    const auto it = std::find(argv.begin(), argv.end(), flag);
    return it == argv.end() || it + 1 == argv.end() ? std::string("absent") : *(it + 1);
  };
  CHECK(value_of("--mtp-depth") == "3");
  CHECK(value_of("--kv-cache") == "bf16");
  CHECK(value_of("--temperature") == "1");
  CHECK(value_of("--top-p") == "0.95");
  CHECK(value_of("--top-k") == "20");
  CHECK(value_of("--min-p") == "absent");
  CHECK(std::find(argv.begin(), argv.end(), "--loop-guard") != argv.end());
  CHECK(std::find(argv.begin(), argv.end(), "--mtp-adaptive") != argv.end());
}

TEST_CASE("one rank serves the pack itself, without splitting or a link", "[plan]") {
  const Plan plan = plan_tiny({"parallel.tensor=1"}, machine());
  REQUIRE(plan.ranks.size() == 1);
  CHECK(plan.ranks[0].folder == plan.nodes[0].pack_folder);
  CHECK(plan.stage(StageName::split).skip);
  CHECK(plan.stage(StageName::link).skip);
  CHECK(std::find(plan.ranks[0].argv.begin(), plan.ranks[0].argv.end(), "--rendezvous") == plan.ranks[0].argv.end());
}

TEST_CASE("what is true already is skipped, and when all of it is, nothing is to do", "[plan]") {
  const PackFacts pack = tiny_pack();
  NodeFacts facts = machine();
  Plan plan = plan_tiny({}, facts, pack);
  CHECK(plan.status == PlanStatus::changes);
  CHECK(plan_exit_code(plan.status) == 10);
  CHECK(plan.download_bytes_left == plan.download_bytes_total);

  facts.cached_files = {pack.files[0].name};
  plan = plan_tiny({}, facts, pack);
  CHECK(plan.download_bytes_left == plan.download_bytes_total - pack.files[0].bytes);

  for (const PlannedFile& file : pack.files) facts.cached_files.push_back(file.name);
  plan = plan_tiny({}, facts, pack);
  CHECK(plan.stage(StageName::fetch).skip);
  CHECK_FALSE(plan.stage(StageName::split).skip);

  facts.cached_files.clear();  // rank folders outlive the download they were made from
  for (const PlannedRank& rank : plan.ranks) facts.rank_folders.push_back(rank.folder);
  plan = plan_tiny({}, facts, pack);
  CHECK(plan.stage(StageName::fetch).skip);
  CHECK(plan.stage(StageName::split).skip);
  CHECK_FALSE(plan.stage(StageName::launch).skip);

  facts.job = RunningJob{plan.stage(StageName::launch).key, true, plan.http_port, plan.rendezvous_port};
  plan = plan_tiny({}, facts, pack);
  CHECK(plan.status == PlanStatus::nothing_to_do);
  CHECK(plan_exit_code(plan.status) == 0);

  facts.job->ready = false;
  CHECK(plan_tiny({}, facts, pack).status == PlanStatus::changes);
  facts.job->ready = true;
  plan = plan_tiny({"engine.context=2k"}, facts, pack);
  CHECK(plan.status == PlanStatus::changes);
  CHECK(says(plan.stage(StageName::launch).summary,
             "it serves with other settings: `tandem down ling-tiny-3.64bpw` first"));
}

TEST_CASE("keys follow the content: another commit, another key; the same inputs, the same plan", "[plan]") {
  PackFacts pack = tiny_pack();
  const Plan one = plan_tiny({}, machine(), pack);
  CHECK(plan_json(one) == plan_json(plan_tiny({}, machine(), pack)));
  pack.commit[0] = 'f';
  const Plan other = plan_tiny({}, machine(), pack);
  for (StageName stage : {StageName::fetch, StageName::split, StageName::launch, StageName::health})
    CHECK(one.stage(stage).key != other.stage(stage).key);
  CHECK(one.ranks[0].folder != other.ranks[0].folder);
}

TEST_CASE("ports are chosen among the free ones, kept while a job runs, and blocked when a fixed one is taken",
          "[plan]") {
  NodeFacts facts = machine();
  facts.ports_in_use = {8000, 8001, 29500};
  Plan plan = plan_tiny({}, facts);
  CHECK(plan.http_port == 8002);
  CHECK(plan.rendezvous_port == 29501);

  facts.job = RunningJob{"of other settings", true, 8077, 29577};
  plan = plan_tiny({}, facts);
  CHECK(plan.http_port == 8077);
  CHECK(plan.rendezvous_port == 29577);

  facts.job.reset();
  plan = plan_tiny({"cluster.ports.http=8001"}, facts);
  CHECK(plan.status == PlanStatus::blocked);
  CHECK(reasons(plan) == "port 8001 of node local is in use\n");
  plan = plan_tiny({"cluster.ports.http=9000", "cluster.listen=0.0.0.0"}, facts);
  CHECK(plan.http_port == 9000);
  CHECK(says(plan_text(plan), "http://0.0.0.0:9000/v1"));
}

TEST_CASE("a plan says all that is in its way at once", "[plan]") {
  NodeFacts facts = machine();
  facts.runtime_program.clear();
  facts.memory_available_bytes = 100 << 20;
  facts.disk_free_bytes = 1 << 20;
  const Plan plan = plan_tiny({}, facts);
  CHECK(plan.status == PlanStatus::blocked);
  CHECK(says(reasons(plan), "tandem-runtime is not installed on node local"));
  CHECK(says(reasons(plan), "and has 100.0 MiB available"));
  CHECK(says(reasons(plan), "of disk for its rank folders"));
  CHECK(says(plan_text(plan), "Blocked:"));
}

TEST_CASE("a setting that the installed runtime does not have is blocked at its line", "[plan]") {
  NodeFacts facts = machine();
  facts.runtime_options = {"--pack",       "--rank",    "--world-size",   "--rendezvous",  "--listen",
                           "--device",     "--context", "--mtp-depth",    "--kv-cache",    "--slots",
                           "--model-name", "--threads", "--peer-timeout", "--memory-floor"};
  CHECK(plan_tiny({}, facts).status == PlanStatus::changes);
  const Plan plan = plan_tiny({"engine.loop_guard=true"}, facts);
  REQUIRE(plan.blocked.size() == 1);
  CHECK(plan.blocked[0].what == "tandem-runtime on node local does not know --loop-guard");
  CHECK(plan.blocked[0].where == "--set engine.loop_guard (engine.loop_guard)");
}

TEST_CASE("a pack that our runtime cannot serve is blocked by name", "[plan]") {
  PackFacts pack = tiny_pack();
  pack.weights.reset();
  pack.config_json = R"({"architectures": ["LlamaForCausalLM"]})";
  const Plan plan = plan_tiny({}, machine(), pack);
  CHECK(plan.status == PlanStatus::blocked);
  CHECK(says(reasons(plan), "LlamaForCausalLM"));
}

TEST_CASE("a context beyond what the pack was made for is blocked", "[plan]") {
  const Plan plan = offline(shipped("ling-3.1-flash-1019-3.03bpw-2x-dgx-spark", {"engine.context=512k"}));
  CHECK(plan.status == PlanStatus::blocked);
  CHECK(says(reasons(plan), "524288 tokens is above the pack's 262144"));
}

TEST_CASE("hooks, which this version does not run, block the plan rather than being left out silently", "[plan]") {
  Recipe recipe = shipped("ling-tiny-3.64bpw").recipe;
  recipe.hooks.push_back({"pre_launch", "warm-up", std::chrono::seconds(30), false, "x.yaml:9:5"});
  const Cluster cluster = shipped("ling-tiny-3.64bpw").cluster;
  const Plan plan = make_plan(recipe, cluster, {machine()}, tiny_pack(), false);
  CHECK(says(reasons(plan), "the hook `warm-up`"));
}

TEST_CASE("a foreign engine is planned like our own: program of the owner, placeholders filled in", "[plan]") {
  const std::string recipe = "ling-3.1-flash-1019-3.03bpw-2x-dgx-spark-tensorfold";
  const LoadedRecipe loaded = shipped(
      recipe, {"cluster.nodes=[{name: a, address: 10.0.0.1, link_address: 192.168.1.1}, {name: b, address: 10.0.0.2}]",
               "cluster.programs.tensorfold=/opt/tf", "cluster.listen=10.0.0.1"});
  std::vector<NodeFacts> facts = {machine(), machine()};
  for (NodeFacts& node : facts) {
    node.memory_available_bytes = static_cast<int64_t>(123.79 * kGiB);
    node.devices = {"cpu", "cuda:0"};
  }
  PackFacts pack;
  pack.commit = kCommit;
  const Plan plan = make_plan(loaded.recipe, loaded.cluster, facts, pack, false);
  INFO(reasons(plan));
  CHECK(plan.status == PlanStatus::changes);
  const std::string folder = "/hub/models--bertholomus--Ling-3.1-flash-1019-EXL3-3.03bpw/snapshots/" + kCommit;
  CHECK(plan.ranks[0].program == "/opt/tf");
  CHECK(plan.ranks[0].argv == std::vector<std::string>{"serve", folder, "--tp", "2", "--rank", "0", "--master",
                                                       "192.168.1.1", "--master-port", "29500", "--context", "262144",
                                                       "--host", "10.0.0.1", "--port", "8000"});
  CHECK(plan.ranks[1].argv == std::vector<std::string>{"serve", folder, "--tp", "2", "--rank", "1", "--master",
                                                       "192.168.1.1", "--master-port", "29500", "--context", "262144"});
  CHECK(plan.ranks[1].env ==
        std::map<std::string, std::string>{{"CUDA_VISIBLE_DEVICES", "0"}, {"TF_ROCE_WAIT_S", "300"}});
  CHECK(plan.start_order == std::vector<int>{0, 1});
  CHECK_FALSE(plan.start_together);
  CHECK(plan.ready_path == "/health");
  CHECK(plan.stage(StageName::split).skip);

  const LoadedRecipe without = shipped(recipe);
  const Plan blocked = make_plan(without.recipe, without.cluster, {facts[0]}, pack, false);
  CHECK(says(reasons(blocked), "it is not known where `tensorfold` is installed"));
}

TEST_CASE("texts that a shell would act on are shown quoted", "[plan]") {
  Plan plan = plan_tiny({}, machine());
  plan.ranks[0].argv = {"serve", "a b", "$(reboot)", "it's", ""};
  CHECK(says(plan_text(plan), "rank 0: /usr/bin/tandem-runtime serve 'a b' '$(reboot)' 'it'\\''s' ''\n"));
}

TEST_CASE("the plan for programs begins with its version and says what the text says", "[plan]") {
  const Plan plan = plan_tiny({}, machine());
  const nlohmann::ordered_json json = plan_json(plan);
  CHECK(json.begin().key() == "schema_version");
  CHECK(json["status"] == "changes");
  CHECK(json["endpoint"] == "http://127.0.0.1:8000");
  CHECK(json["ranks"].size() == 2);
  CHECK(json["ranks"][1]["argv"] == plan.ranks[1].argv);
  CHECK(json["stages"][0]["stage"] == "fetch");
}

}  // namespace
}  // namespace tandem
