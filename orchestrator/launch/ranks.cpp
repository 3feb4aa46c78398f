#include "orchestrator/launch/ranks.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

namespace tandem::launch {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

/// Small on purpose: a loop of restarts wears a machine down and hides the cause.
constexpr int kRestartBudget = 2;
/// Added to the peer timeout, so that the old ranks are gone everywhere before a new one starts.
constexpr milliseconds kRestartMargin{5'000};
constexpr size_t kLinesShown = 15;

json job_params(const Nodes& nodes, size_t index, const std::string& job) {
  return {{"job", job}, {"state_folder", nodes.node(index).state_folder}};
}

void append_ranks(const std::string& node, const json& ranks, std::vector<RankOnNode>& all) {
  for (const json& rank : ranks) all.push_back({node, node::rank_status_from_json(rank)});
}

void sort_by_rank(std::vector<RankOnNode>& ranks) {
  std::sort(ranks.begin(), ranks.end(),
            [](const RankOnNode& a, const RankOnNode& b) { return a.status.state.rank < b.status.state.rank; });
}

bool lost_its_peer(const node::RankStatus& status) {
  const auto& ending = status.state.last_ending;
  return ending && ending->signal == 0 && ending->exit_code == exit_code(ErrorKind::peer_lost);
}

Error describe_failure(const std::string& job, const RankOnNode& failed) {
  const node::RankState& state = failed.status.state;
  std::string what = "rank " + std::to_string(state.rank) + " " + failed.status.summary();
  const auto& lines = state.last_log_lines;
  if (!lines.empty()) {
    what += "; its last lines:";
    for (size_t i = lines.size() - std::min(lines.size(), kLinesShown); i < lines.size(); ++i)
      what += "\n    " + printable(lines[i], 300);
  }
  return Error(ErrorKind::launch, what, "node " + failed.node, "tandem logs " + job + " shows all of it");
}

}  // namespace

node::RankSpec rank_spec(const Plan& plan, const Recipe& recipe, const PlannedRank& rank) {
  node::RankSpec spec;
  spec.job = plan.recipe_name;
  spec.rank = rank.rank;
  spec.world_size = plan.world_size;
  spec.argv = {rank.program};
  spec.argv.insert(spec.argv.end(), rank.argv.begin(), rank.argv.end());
  spec.env = rank.env;
  spec.launch_key = plan.stage(StageName::launch).key;
  spec.http_port = plan.http_port;
  spec.rendezvous_port = plan.rendezvous_port;
  if (rank.rank == 0) {
    spec.ports.push_back(plan.http_port);
    if (plan.world_size > 1) spec.ports.push_back(plan.rendezvous_port);
  }
  spec.memory_floor_bytes = recipe.rank_floor_bytes.at(static_cast<size_t>(rank.rank));
  spec.restart_budget = kRestartBudget;
  spec.restart_delay = milliseconds(1'000);
  if (plan.world_size > 1)
    spec.restart_delay = std::chrono::ceil<milliseconds>(recipe.engine.peer_timeout) + kRestartMargin;
  return spec;
}

void start_ranks(Nodes& nodes, const Plan& plan, const Recipe& recipe, std::stop_token stop) {
  for (const int number : plan.start_order) {
    if (stop.stop_requested()) throw Error(ErrorKind::interrupted, "interrupted while starting ranks");
    const PlannedRank& rank = plan.ranks.at(static_cast<size_t>(number));
    const auto node = static_cast<size_t>(rank.node);
    nodes.client(node).call(
        "start", {{"spec", to_json(rank_spec(plan, recipe, rank))}, {"state_folder", nodes.node(node).state_folder}});
  }
}

void keep_ranks(Nodes& nodes, const std::string& job) {
  for (const size_t index : nodes.all()) nodes.client(index).call("keep", job_params(nodes, index, job));
}

std::vector<RankOnNode> rank_statuses(Nodes& nodes, const std::string& job) {
  std::vector<RankOnNode> all;
  for (const size_t index : nodes.all()) {
    const json result = nodes.client(index).call("status", job_params(nodes, index, job));
    for (const json& found : result.at("jobs")) append_ranks(nodes.node(index).name, found.at("ranks"), all);
  }
  sort_by_rank(all);
  return all;
}

StopReport stop_job(Nodes& nodes, const std::string& job, const StopOptions& options) {
  StopReport report;
  std::mutex mutex;
  nodes.for_each(nodes.all(), {}, [&](size_t index, const std::stop_token&) {
    try {
      json params = job_params(nodes, index, job);
      params["remove_logs"] = options.remove_logs;
      const json result = nodes.client(index).call("stop", params);
      const std::string& name = nodes.node(index).name;
      const std::lock_guard lock(mutex);
      append_ranks(name, result.at("ranks"), report.ranks);
      for (const json& process : result.at("processes_left"))
        report.left.push_back("node " + name + ": process " + process.at("pid").dump() + " (" +
                              process.at("command").get<std::string>() + ") does not end");
      for (const json& port : result.at("ports_left"))
        report.left.push_back("node " + name + ": port " + port.at("port").dump() + " is still held by process " +
                              port.at("pid").dump() + " (" + port.at("command").get<std::string>() + ")");
    } catch (const Error& e) {
      const std::lock_guard lock(mutex);
      report.unreachable.push_back(e);
    } catch (const json::exception& e) {
      const std::lock_guard lock(mutex);
      report.unreachable.emplace_back(ErrorKind::node, std::string("the answer to `stop` is malformed: ") + e.what());
    }
  });
  sort_by_rank(report.ranks);
  return report;
}

struct RankWatch::State {
  Nodes& nodes;
  std::string job;
  std::stop_source failed;  // what token() belongs to
  std::stop_source ending;  // the watch itself is over
  mutable std::mutex mutex;
  std::optional<Error> failure;
  std::optional<std::stop_callback<std::function<void()>>> forward;
  std::vector<std::jthread> threads;

  State(Nodes& n, std::string j) : nodes(n), job(std::move(j)) {}

  void watch(size_t index) {
    std::optional<Error> problem;
    try {
      nodes.client(index).call("watch", job_params(nodes, index, job), {}, ending.get_token());
      if (!ending.stop_requested()) problem = find_cause();
    } catch (const Error& e) {
      if (!ending.stop_requested()) problem = e;
    }
    if (!problem) return;
    const std::lock_guard lock(mutex);
    if (!failure) failure = std::move(problem);
    failed.request_stop();
  }

  /// The rank that went first. The others end because of it, with "another rank went away", and may be seen sooner.
  Error find_cause() {
    std::optional<RankOnNode> candidate;
    for (int look = 0; look < 20; ++look) {
      for (const RankOnNode& rank : rank_statuses(nodes, job)) {
        if (!rank.status.failed()) continue;
        if (!lost_its_peer(rank.status)) return describe_failure(job, rank);
        candidate = rank;
      }
      std::this_thread::sleep_for(milliseconds(100));
    }
    if (candidate) return describe_failure(job, *candidate);
    return Error(ErrorKind::launch, "the job's ranks are gone", "job " + job, "was `tandem down` run meanwhile?");
  }
};

RankWatch::RankWatch(Nodes& nodes, std::string job, std::stop_token outer)
    : state_(std::make_unique<State>(nodes, std::move(job))) {
  state_->forward.emplace(std::move(outer), [s = state_.get()] { s->failed.request_stop(); });
  for (const size_t index : nodes.all()) nodes.client(index);  // connected before threads share them
  for (const size_t index : nodes.all()) state_->threads.emplace_back([s = state_.get(), index] { s->watch(index); });
}

RankWatch::~RankWatch() {
  state_->ending.request_stop();
  state_->threads.clear();
}

std::stop_token RankWatch::token() const {
  return state_->failed.get_token();
}

std::optional<Error> RankWatch::failure() const {
  const std::lock_guard lock(state_->mutex);
  return state_->failure;
}

}  // namespace tandem::launch
