#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "orchestrator/launch/nodes.h"
#include "orchestrator/node/rank_state.h"
#include "orchestrator/plan/plan.h"
#include "runtime/common/error.h"

namespace tandem::launch {

/// A rank of a job and where it is.
struct RankOnNode {
  std::string node;
  node::RankStatus status;
};

/// What to run for one rank of a plan.
node::RankSpec rank_spec(const Plan& plan, const Recipe& recipe, const PlannedRank& rank);

/// Starts the ranks in the plan's order. @throws Error  the first that does not start; the others stay as they are
void start_ranks(Nodes& nodes, const Plan& plan, const Recipe& recipe, std::stop_token stop);

/// The job is ready: its ranks no longer depend on this controller.
void keep_ranks(Nodes& nodes, const std::string& job);

/// All ranks of a job on these nodes, in rank order.
std::vector<RankOnNode> rank_statuses(Nodes& nodes, const std::string& job);

struct StopOptions {
  bool remove_logs = true;
};
struct StopReport {
  std::vector<RankOnNode> ranks;   ///< as they ended
  std::vector<std::string> left;   ///< processes and ports that are still there, one sentence each
  std::vector<Error> unreachable;  ///< nodes that could not be asked
  bool clean() const { return left.empty() && unreachable.empty(); }
};
/// Stops a job everywhere and proves it. Goes on past a node that fails: the rest must not stay up for it.
StopReport stop_job(Nodes& nodes, const std::string& job, const StopOptions& options);

/// Watches all ranks from the moment they start until it is destroyed.
class RankWatch {
 public:
  /// @param outer  also requests the stop of token()
  RankWatch(Nodes& nodes, std::string job, std::stop_token outer);
  ~RankWatch();

  /// Requested as soon as a rank fails.
  std::stop_token token() const;
  /// The rank that failed first, with how it ended and its last log lines; nothing while all is well.
  std::optional<Error> failure() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::launch
