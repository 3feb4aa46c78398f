#include "orchestrator/launch/run.h"

#include <algorithm>
#include <ctime>
#include <mutex>
#include <nlohmann/json.hpp>

#include "orchestrator/launch/link_check.h"
#include "orchestrator/node/rank_state.h"
#include "orchestrator/plan/pack_facts.h"
#include "runtime/common/units.h"

namespace tandem::launch {
namespace {

using nlohmann::json;

/// Adds up what several nodes report of one stage.
class SharedProgress {
 public:
  explicit SharedProgress(Observer& observer) : observer_(observer) {}

  void tell(size_t node, const json& event) {
    const std::lock_guard lock(mutex_);
    by_node_[node] = {event.value("bytes_done", int64_t{0}), event.value("bytes_total", int64_t{0})};
    int64_t done = 0, total = 0;
    for (const auto& [index, bytes] : by_node_) {
      done += bytes.first;
      total += bytes.second;
    }
    const std::string text = by_node_.size() == 1 ? event.value("text", "")
                                                  : format_bytes(done) + " of " + format_bytes(total) + " on " +
                                                        std::to_string(by_node_.size()) + " nodes";
    observer_.progress(text, done, total);
  }

 private:
  Observer& observer_;
  std::mutex mutex_;
  std::map<size_t, std::pair<int64_t, int64_t>> by_node_;
};

}  // namespace

Run::Run(const LoadOptions& options, bool verify, Observer& observer, std::stop_token stop, const Connect& connect)
    : options_(options),
      verify_(verify),
      observer_(observer),
      stop_(std::move(stop)),
      connect_(connect),
      cancel_(stop_) {}

void Run::read_recipe() {
  begin(Stage::recipe);
  const LoadedRecipe loaded = load_recipe(options_);
  name_ = loaded.recipe.name;
  nodes_.emplace(loaded.cluster.nodes, connect_);
  observer_.end(loaded.recipe.title.empty() ? name_ : loaded.recipe.title, false);
}

void Run::make_plan() {
  begin(Stage::plan);
  observer_.progress("asking hub and nodes", 0, 0);
  PlanOptions options;
  options.load = options_;
  prepared_ = prepare_plan(
      options,
      [this](const Recipe& recipe, const Cluster& cluster, const PackFacts& pack) {
        return ask_nodes(*nodes_, recipe, cluster, pack, stop_);
      },
      cancel_.get());
  observer_.planned(plan());
  require_unblocked();
  observer_.end(plan().status == PlanStatus::nothing_to_do ? "nothing to do" : "ready to go", false);
}

void Run::fetch() {
  begin(Stage::fetch);
  const PlannedStage& stage = plan().stage(StageName::fetch);
  if (stage.skip && !verify_ && plan().pack_path.empty()) {
    observer_.end(stage.summary, true);
    return;
  }
  SharedProgress progress(observer_);
  std::vector<json> results(nodes_->size());
  nodes_->for_each(used_nodes(), stop_, [&](size_t node, std::stop_token cancel) {
    results[node] = nodes_->client(node).call(
        "fetch", fetch_params(node), [&](const nlohmann::json& event) { progress.tell(node, event); }, cancel);
  });
  int64_t downloaded = 0;
  for (const nlohmann::json& result : results)
    if (result.is_object()) downloaded += result.at("bytes_downloaded").get<int64_t>();
  for (const size_t node : used_nodes()) pack_folders_[node] = results[node].at("folder").get<std::string>();
  plan_with_headers();
  observer_.end(downloaded > 0 ? "downloaded " + format_bytes(downloaded) : "everything was there", downloaded == 0);
}

void Run::split() {
  begin(Stage::split);
  const PlannedStage& stage = plan().stage(StageName::split);
  if (stage.skip) {
    observer_.end(stage.summary, true);
    return;
  }
  SharedProgress progress(observer_);
  std::mutex mutex;
  int64_t bytes = 0;
  nodes_->for_each(used_nodes(), stop_, [&](size_t node, std::stop_token cancel) {
    const json result = nodes_->client(node).call(
        "split", split_params(node), [&](const nlohmann::json& event) { progress.tell(node, event); }, cancel);
    const std::lock_guard lock(mutex);
    for (const nlohmann::json& rank : result.at("ranks"))
      if (!rank.at("already_there").get<bool>()) bytes += rank.at("bytes").get<int64_t>();
  });
  observer_.end(bytes > 0 ? "wrote " + format_bytes(bytes) : "everything was there", bytes == 0);
}

void Run::verify_link() {
  begin(Stage::link);
  if (plan().world_size < 2) {
    observer_.end(plan().stage(StageName::link).summary, true);
    return;
  }
  observer_.progress("moving bytes between the ranks' addresses", 0, 0);
  links_ = measure_links(*nodes_, plan(), recipe(), stop_);
  require_links(links_);
  std::string summary;
  for (const fabric::LinkReport& link : links_) summary += (summary.empty() ? "" : "\n") + link_text(link);
  observer_.end(summary, false);
}

void Run::launch() {
  begin(Stage::launch);
  started_ = true;
  stop_leftovers();
  write_record(node::default_state_folder(), record());
  start_ranks(*nodes_, plan(), recipe(), stop_);
  watch_.emplace(*nodes_, name_, stop_);
  observer_.end(std::to_string(plan().world_size) + (plan().world_size == 1 ? " rank runs" : " ranks run"), false);
}

void Run::check_health() {
  begin(Stage::health);
  try {
    health_ = health::climb(
        health_target(),
        [this](const health::Progress& p) {
          const std::string percent =
              p.fraction >= 0 ? "  " + std::to_string(static_cast<int>(p.fraction * 100)) + "%" : "";
          observer_.progress(p.text + percent, 0, 0);
        },
        watch_->token());
  } catch (const Error& e) {
    if (const auto failure = watch_->failure()) throw *failure;
    throw e.kind() == ErrorKind::health ? with_last_lines(e) : e;
  }
  keep_ranks(*nodes_, name_);
  if (const auto failure = watch_->failure()) throw *failure;
  watch_.reset();
  observer_.end("ready; " + judged(), false);
}

void Run::refuse_other_settings() const {
  for (const NodeFacts& facts : prepared_.facts)
    if (facts.job && facts.job->ready && !serves_already())
      throw Error(ErrorKind::launch, "`" + name_ + "` runs already, with other settings", "node " + facts.name,
                  "tandem down " + name_ + ", then tandem up again");
}

void Run::check_that_it_serves() {
  begin(Stage::health);
  health::Target target = health_target();
  target.load_limit = std::chrono::seconds(15);
  try {
    health_ = health::climb(target, {}, stop_);
  } catch (const Error& e) {
    throw e.kind() == ErrorKind::health ? Error(e.kind(), std::string("it runs, but: ") + e.what(), e.where(),
                                                "tandem down " + name_ + ", then tandem up again")
                                        : e;
  }
  observer_.end("already up; " + judged(), true);
}

std::vector<std::string> Run::clean_up(bool remove_logs) {
  watch_.reset();
  if (!started_) return {};
  const StopReport report = stop_job(*nodes_, name_, {remove_logs});
  std::vector<std::string> left = report.left;
  for (const Error& error : report.unreachable) left.push_back(error.where() + ": " + error.what());
  if (left.empty()) remove_record(node::default_state_folder(), name_);
  return left;
}

UpResult Run::result(bool already_up) const {
  UpResult result;
  result.plan = plan();
  result.already_up = already_up;
  result.endpoint = "http://" + url_host() + ":" + std::to_string(plan().http_port) + "/v1";
  result.links = links_;
  result.health = health_;
  return result;
}

StageResult Run::stage_result() const {
  StageResult result{plan(), {}, links_};
  for (const auto& [node, folder] : pack_folders_) result.folders.push_back(folder);
  return result;
}

void Run::begin(Stage stage) {
  if (stop_.stop_requested()) throw Error(ErrorKind::interrupted, "interrupted");
  stage_ = stage;
  observer_.begin(stage);
}

void Run::require_unblocked() const {
  if (plan().status != PlanStatus::blocked) return;
  const PlanReason& first = plan().blocked.front();
  const size_t more = plan().blocked.size() - 1;
  throw Error(ErrorKind::plan,
              first.what + (more == 0 ? "" : " (and " + std::to_string(more) + " more reasons, see the plan)"),
              first.where, first.fix);
}

std::vector<size_t> Run::used_nodes() const {
  std::vector<size_t> used;
  for (size_t n = 0; n < plan().nodes.size(); ++n)
    if (!plan().nodes[n].ranks.empty()) used.push_back(n);
  return used;
}

json Run::fetch_params(size_t node) const {
  json expected = json::array();
  if (prepared_.lock)
    for (const PlannedFile& file : prepared_.lock->files)
      expected.push_back({{"path", file.name}, {"size", file.bytes}, {"sha256", file.sha256}});
  if (!plan().pack_path.empty()) return {{"folder", plan().pack_path}, {"expected", expected}};
  return {{"repo", plan().pack_repo},
          {"endpoint", plan().pack_endpoint},
          {"revision", prepared_.pack.commit.empty() ? plan().pack_revision : prepared_.pack.commit},
          {"hub_cache", prepared_.facts[node].hub_cache},
          {"expected", expected},
          {"verify", verify_}};
}

json Run::split_params(size_t node) {
  const std::vector<std::string>& there = prepared_.facts[node].rank_folders;
  json ranks = json::array();
  for (const PlannedRank& rank : plan().ranks)
    if (static_cast<size_t>(rank.node) == node && std::find(there.begin(), there.end(), rank.folder) == there.end())
      ranks.push_back(rank.rank);
  const auto fetched = pack_folders_.find(node);
  return {{"pack_folder", fetched != pack_folders_.end() ? fetched->second : plan().nodes[node].pack_folder},
          {"ranks_folder", prepared_.facts[node].ranks_folder},
          {"pack_key", plan().split_base},
          {"repo", plan().pack_repo},
          {"commit", prepared_.pack.commit},
          {"world_size", plan().world_size},
          {"ranks", ranks}};
}

void Run::plan_with_headers() {
  if (!plan().weights_estimated || prepared_.pack.commit.empty()) return;
  PackFactsOptions options;
  options.hub_cache = prepared_.facts.front().hub_cache;
  options.offline = true;
  Lock known;  // the commit that was resolved at the start; a branch is never resolved twice
  known.commit = prepared_.pack.commit;
  known.files = prepared_.pack.files;
  options.lock = known;
  prepared_.pack = gather_pack_facts(recipe(), prepared_.cluster, options, cancel_.get());
  std::vector<std::string> notes = plan().notes;
  prepared_.plan = tandem::make_plan(recipe(), prepared_.cluster, prepared_.facts, prepared_.pack, /*offline=*/false);
  prepared_.plan.notes = std::move(notes);
  require_unblocked();
}

void Run::stop_leftovers() {
  if (rank_statuses(*nodes_, name_).empty()) return;
  observer_.progress("removing what an earlier run left", 0, 0);
  const StopReport report = stop_job(*nodes_, name_, {});
  if (!report.unreachable.empty()) throw report.unreachable.front();
  if (!report.left.empty())
    throw Error(ErrorKind::launch, "an earlier run is still there: " + report.left.front(), "", "end it by hand");
}

JobRecord Run::record() const {
  JobRecord record;
  record.name = name_;
  record.recipe_file = prepared_.loaded.file.string();
  record.model = plan().model_name;
  record.launch_key = plan().stage(StageName::launch).key;
  record.address = reachable_address(plan().listen_address);
  record.http_port = plan().http_port;
  record.tandem_engine = plan().engine == EngineKind::tandem;
  for (const size_t node : used_nodes()) record.nodes.push_back(prepared_.cluster.nodes[node]);
  record.started_at = std::time(nullptr);
  return record;
}

health::Target Run::health_target() const {
  health::Target target;
  target.address = reachable_address(plan().listen_address);
  target.port = plan().http_port;
  target.engine = plan().engine;
  target.ready_path = plan().ready_path;
  target.model = plan().model_name;
  target.context_tokens = plan().context_tokens;
  target.world_size = plan().world_size;
  target.probes = recipe().health.probes;
  if (recipe().health.load_timeout.count() > 0)
    target.load_limit = std::chrono::ceil<std::chrono::milliseconds>(recipe().health.load_timeout);
  return target;
}

std::string Run::judged() const {
  const size_t count = health_.answers.size();
  return std::to_string(count) + (count == 1 ? " answer" : " answers") + " judged sound";
}

std::string Run::url_host() const {
  const std::string host = reachable_address(plan().listen_address);
  return host.find(':') != std::string::npos ? "[" + host + "]" : host;
}

Error Run::with_last_lines(const Error& error) {
  std::string what = error.what();
  for (const size_t node : used_nodes()) {
    try {
      nodes_->client(node).call(
          "logs", {{"job", name_}, {"lines", 5}, {"state_folder", nodes_->node(node).state_folder}},
          [&](const nlohmann::json& event) {
            what += "\n    rank " + event.at("rank").dump() + " | " + printable(event.value("line", ""), 300);
          });
    } catch (const Error&) {  // the error at hand matters more
    }
  }
  return Error(error.kind(), what, error.where(), error.fix());
}

}  // namespace tandem::launch
