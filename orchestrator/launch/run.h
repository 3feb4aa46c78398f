#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "orchestrator/launch/job_record.h"
#include "orchestrator/launch/ranks.h"
#include "orchestrator/launch/up.h"
#include "orchestrator/node/cancel_flag.h"
#include "runtime/common/error.h"

namespace tandem::launch {

/// What one run of `up` knows and does, a member function a stage. up.cpp puts them in order.
class Run {
 public:
  Run(const LoadOptions& options, bool verify, Observer& observer, std::stop_token stop, const Connect& connect);

  /// Reads the recipe, and with it the job's name.
  void read_recipe();

  void make_plan();
  void fetch();
  void split();
  void verify_link();
  /// From here on something runs: clean_up() has to be called when a later step fails.
  void launch();
  /// Waits until ready, has answers judged, and lets the ranks outlive this run.
  void check_health();

  /// The same recipe with the same settings serves already.
  bool serves_already() const { return plan().stage(StageName::launch).skip && plan().stage(StageName::health).skip; }

  /// Refuses to take down a job that serves under other settings: its users did not ask for that.
  void refuse_other_settings() const;

  void check_that_it_serves();

  /// Stops what launch() started. @return what had to be left, one sentence each
  std::vector<std::string> clean_up(bool remove_logs);
  bool stop_requested() const { return stop_.stop_requested(); }

  UpResult result(bool already_up) const;
  StageResult stage_result() const;

  const Plan& plan() const { return prepared_.plan; }
  const std::string& name() const { return name_; }
  std::string stage_text() const { return std::string(stage_name(stage_)); }
  bool started() const { return started_; }

 private:
  const Recipe& recipe() const { return prepared_.loaded.recipe; }

  void begin(Stage stage);
  void require_unblocked() const;
  std::vector<size_t> used_nodes() const;
  nlohmann::json fetch_params(size_t node) const;
  nlohmann::json split_params(size_t node);

  /// With the pack on the disk, its headers give exact sizes instead of estimates: memory is judged once more, and
  /// before anything is written.
  void plan_with_headers();

  /// Ranks that died, or that a killed controller left: not worth keeping, and in the way.
  void stop_leftovers();

  JobRecord record() const;
  health::Target health_target() const;
  std::string judged() const;
  std::string url_host() const;

  /// A health error with the last words of every rank: that is where the cause usually is.
  Error with_last_lines(const Error& error);

  const LoadOptions& options_;
  bool verify_;
  Observer& observer_;
  std::stop_token stop_;
  const Connect& connect_;
  node::CancelFlag cancel_;
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

}  // namespace tandem::launch
