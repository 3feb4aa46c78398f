#include "orchestrator/launch/up.h"

#include <ctime>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "orchestrator/launch/job_record.h"
#include "orchestrator/launch/link_check.h"
#include "orchestrator/launch/ranks.h"
#include "orchestrator/node/rank_state.h"
#include "orchestrator/plan/pack_facts.h"
#include "runtime/common/error.h"
#include "runtime/common/units.h"

namespace tandem::launch {
namespace {

using nlohmann::json;

/// A flag for rooms that poll one, set by a stop token.
struct CancelFlag {
  std::atomic<bool> flag = false;
  std::stop_callback<std::function<void()>> set;
  explicit CancelFlag(const std::stop_token& stop) : set(stop, [this] { flag = true; }) {}
};

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

class Run {
 public:
  Run(const LoadOptions& options, bool verify, Observer& observer, std::stop_token stop, const Connect& connect)
      : options_(options),
        verify_(verify),
        observer_(observer),
        stop_(std::move(stop)),
        connect_(connect),
        cancel_(stop_) {}

  /// Reads the recipe, and with it the job's name.
  void read_recipe() {
    begin(Stage::recipe);
    const LoadedRecipe loaded = load_recipe(options_);
    name_ = loaded.recipe.name;
    nodes_.emplace(loaded.cluster.nodes, connect_);
    observer_.end(loaded.recipe.title.empty() ? name_ : loaded.recipe.title, false);
  }

  void make_plan() {
    begin(Stage::plan);
    observer_.progress("asking hub and nodes", 0, 0);
    PlanOptions options;
    options.load = options_;
    prepared_ = prepare_plan(
        options,
        [this](const Recipe& recipe, const Cluster& cluster, const PackFacts& pack) {
          return ask_nodes(*nodes_, recipe, cluster, pack, stop_);
        },
        &cancel_.flag);
    observer_.planned(plan());
    require_unblocked();
    observer_.end(plan().status == PlanStatus::nothing_to_do ? "nothing to do" : "ready to go", false);
  }

  void fetch() {
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
          "fetch", fetch_params(node), [&](const json& event) { progress.tell(node, event); }, cancel);
    });
    int64_t downloaded = 0;
    for (const json& result : results)
      if (result.is_object()) downloaded += result.at("bytes_downloaded").get<int64_t>();
    for (const size_t node : used_nodes()) pack_folders_[node] = results[node].at("folder").get<std::string>();
    plan_with_headers();
    observer_.end(downloaded > 0 ? "downloaded " + format_bytes(downloaded) : "everything was there", downloaded == 0);
  }

  void split() {
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
          "split", split_params(node), [&](const json& event) { progress.tell(node, event); }, cancel);
      const std::lock_guard lock(mutex);
      for (const json& rank : result.at("ranks"))
        if (!rank.at("already_there").get<bool>()) bytes += rank.at("bytes").get<int64_t>();
    });
    observer_.end(bytes > 0 ? "wrote " + format_bytes(bytes) : "everything was there", bytes == 0);
  }

  void verify_link() {
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

  /// From here on something runs: clean_up() has to be called when a later step fails.
  void launch() {
    begin(Stage::launch);
    started_ = true;
    stop_leftovers();
    write_record(node::default_state_folder(), record());
    start_ranks(*nodes_, plan(), recipe(), stop_);
    watch_.emplace(*nodes_, name_, stop_);
    observer_.end(std::to_string(plan().world_size) + (plan().world_size == 1 ? " rank runs" : " ranks run"), false);
  }

  void check_health() {
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

  /// The same recipe with the same settings serves already.
  bool serves_already() const { return plan().stage(StageName::launch).skip && plan().stage(StageName::health).skip; }

  /// Refuses to take down a job that serves under other settings: its users did not ask for that.
  void refuse_other_settings() const {
    for (const NodeFacts& facts : prepared_.facts)
      if (facts.job && facts.job->ready && !serves_already())
        throw Error(ErrorKind::launch, "`" + name_ + "` runs already, with other settings", "node " + facts.name,
                    "tandem down " + name_ + ", then tandem up again");
  }

  void check_that_it_serves() {
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

  /// Stops what launch() started. @return what had to be left, one sentence each
  std::vector<std::string> clean_up(bool remove_logs) {
    watch_.reset();
    if (!started_) return {};
    const StopReport report = stop_job(*nodes_, name_, {remove_logs});
    std::vector<std::string> left = report.left;
    for (const Error& error : report.unreachable) left.push_back(error.where() + ": " + error.what());
    if (left.empty()) remove_record(node::default_state_folder(), name_);
    return left;
  }

  UpResult result(bool already_up) const {
    UpResult result;
    result.plan = plan();
    result.already_up = already_up;
    result.endpoint = "http://" + url_host() + ":" + std::to_string(plan().http_port) + "/v1";
    result.links = links_;
    result.health = health_;
    return result;
  }

  StageResult stage_result() const {
    StageResult result{plan(), {}, links_};
    for (const auto& [node, folder] : pack_folders_) result.folders.push_back(folder);
    return result;
  }

  const Plan& plan() const { return prepared_.plan; }
  const std::string& name() const { return name_; }
  std::string stage_text() const { return std::string(stage_name(stage_)); }
  bool started() const { return started_; }

 private:
  const Recipe& recipe() const { return prepared_.loaded.recipe; }

  void begin(Stage stage) {
    if (stop_.stop_requested()) throw Error(ErrorKind::interrupted, "interrupted");
    stage_ = stage;
    observer_.begin(stage);
  }

  void require_unblocked() const {
    if (plan().status != PlanStatus::blocked) return;
    const PlanReason& first = plan().blocked.front();
    const size_t more = plan().blocked.size() - 1;
    throw Error(ErrorKind::plan,
                first.what + (more == 0 ? "" : " (and " + std::to_string(more) + " more reasons, see the plan)"),
                first.where, first.fix);
  }

  std::vector<size_t> used_nodes() const {
    std::vector<size_t> used;
    for (size_t n = 0; n < plan().nodes.size(); ++n)
      if (!plan().nodes[n].ranks.empty()) used.push_back(n);
    return used;
  }

  json fetch_params(size_t node) const {
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

  json split_params(size_t node) {
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

  /// With the pack on the disk, its headers give exact sizes instead of estimates: memory is judged once more, and
  /// before anything is written.
  void plan_with_headers() {
    if (!plan().weights_estimated || prepared_.pack.commit.empty()) return;
    PackFactsOptions options;
    options.hub_cache = prepared_.facts.front().hub_cache;
    options.offline = true;
    Lock known;  // the commit that was resolved at the start; a branch is never resolved twice
    known.commit = prepared_.pack.commit;
    known.files = prepared_.pack.files;
    options.lock = known;
    prepared_.pack = gather_pack_facts(recipe(), prepared_.cluster, options, &cancel_.flag);
    std::vector<std::string> notes = plan().notes;
    prepared_.plan = tandem::make_plan(recipe(), prepared_.cluster, prepared_.facts, prepared_.pack, /*offline=*/false);
    prepared_.plan.notes = std::move(notes);
    require_unblocked();
  }

  /// Ranks that died, or that a killed controller left: not worth keeping, and in the way.
  void stop_leftovers() {
    if (rank_statuses(*nodes_, name_).empty()) return;
    observer_.progress("removing what an earlier run left", 0, 0);
    const StopReport report = stop_job(*nodes_, name_, {});
    if (!report.unreachable.empty()) throw report.unreachable.front();
    if (!report.left.empty())
      throw Error(ErrorKind::launch, "an earlier run is still there: " + report.left.front(), "", "end it by hand");
  }

  JobRecord record() const {
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

  health::Target health_target() const {
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

  std::string judged() const {
    const size_t count = health_.answers.size();
    return std::to_string(count) + (count == 1 ? " answer" : " answers") + " judged sound";
  }

  std::string url_host() const {
    const std::string host = reachable_address(plan().listen_address);
    return host.find(':') != std::string::npos ? "[" + host + "]" : host;
  }

  /// A health error with the last words of every rank: that is where the cause usually is.
  Error with_last_lines(const Error& error) {
    std::string what = error.what();
    for (const size_t node : used_nodes()) {
      try {
        nodes_->client(node).call(
            "logs", {{"job", name_}, {"lines", 5}, {"state_folder", nodes_->node(node).state_folder}},
            [&](const json& event) {
              what += "\n    rank " + event.at("rank").dump() + " | " + printable(event.value("line", ""), 300);
            });
      } catch (const Error&) {  // the error at hand matters more
      }
    }
    return Error(error.kind(), what, error.where(), error.fix());
  }

  const LoadOptions& options_;
  bool verify_;
  Observer& observer_;
  std::stop_token stop_;
  const Connect& connect_;
  CancelFlag cancel_;
  Stage stage_ = Stage::recipe;
  std::string name_;
  std::optional<Nodes> nodes_;
  PreparedPlan prepared_;
  std::map<size_t, std::string> pack_folders_;
  std::vector<fabric::LinkReport> links_;
  std::optional<RankWatch> watch_;
  health::Report health_;
  bool started_ = false;
};

std::string join(const std::vector<std::string>& sentences) {
  std::string text;
  for (const std::string& sentence : sentences) text += (text.empty() ? "" : "; ") + sentence;
  return text;
}

/// The error that ended a run, with what the clean-up achieved.
Error after_clean_up(const Error& error, Run& run) {
  const bool interrupted = error.kind() == ErrorKind::interrupted;
  std::vector<std::string> left;
  try {
    left = run.clean_up(/*remove_logs=*/interrupted);
  } catch (const Error& e) {
    left.push_back(std::string("cleaning up failed: ") + e.what());
  }
  if (!left.empty())
    return Error(error.kind(), std::string(error.what()) + "; left behind: " + join(left), error.where(),
                 "tandem down " + run.name());
  if (!interrupted) return error;
  return Error(ErrorKind::interrupted, "interrupted during " + run.stage_text(), "",
               run.started() ? "everything that was started is stopped; downloads and rank folders are kept"
                             : "nothing was started; what was downloaded or written is kept, and the next run goes on "
                               "from there");
}

}  // namespace

std::string_view stage_name(Stage stage) {
  switch (stage) {
    case Stage::recipe:
      return "recipe";
    case Stage::plan:
      return "plan";
    case Stage::fetch:
      return "fetch";
    case Stage::split:
      return "split";
    case Stage::link:
      return "link";
    case Stage::launch:
      return "launch";
    case Stage::health:
      return "health";
  }
  return "";
}

std::string reachable_address(const std::string& address) {
  if (address.empty() || address == "0.0.0.0") return "127.0.0.1";
  return address == "::" ? "::1" : address;
}

UpResult up(const LoadOptions& options, Observer& observer, std::stop_token stop, const Connect& connect) {
  Run run(options, /*verify=*/false, observer, stop, connect);
  std::optional<JobLock> lock;
  try {
    run.read_recipe();
    lock.emplace(node::default_state_folder(), run.name(), "up");
    run.make_plan();
    if (run.serves_already()) {
      run.check_that_it_serves();
      return run.result(/*already_up=*/true);
    }
    run.refuse_other_settings();
    run.fetch();
    run.split();
    run.verify_link();
    run.launch();
    run.check_health();
    return run.result(/*already_up=*/false);
  } catch (const Error& e) {
    throw after_clean_up(e, run);
  }
}

StageResult run_until(Stage last, const LoadOptions& options, bool verify, Observer& observer, std::stop_token stop,
                      const Connect& connect) {
  Run run(options, verify, observer, stop, connect);
  try {
    run.read_recipe();
    run.make_plan();
    if (last == Stage::link) {
      run.verify_link();  // needs no pack
      return run.stage_result();
    }
    run.fetch();
    if (last == Stage::split) run.split();
    return run.stage_result();
  } catch (const Error& e) {
    throw after_clean_up(e, run);
  }
}

}  // namespace tandem::launch
