#pragma once

#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "orchestrator/health/ladder.h"
#include "orchestrator/launch/job_record.h"
#include "orchestrator/launch/ranks.h"

namespace tandem::launch {

enum class JobState {
  running,   ///< every rank runs and the engine is ready
  starting,  ///< every rank runs, the engine is not ready yet
  failed,    ///< a rank ended by itself, or the ranks run and do not answer
  stopped,   ///< nothing of it is there
  unknown,   ///< a node could not be asked
};
std::string_view job_state_name(JobState state);
/// 0 running, starting, stopped; 4 unknown; 5 failed.
int job_state_exit_code(JobState state);

struct JobStatus {
  std::string name;
  JobState state = JobState::unknown;
  std::string reason;               ///< one sentence; "" when it runs
  std::optional<JobRecord> record;  ///< none: only the node knows of it
  std::vector<RankOnNode> ranks;
  std::optional<health::RuntimeHealth> health;
};

/// Every job that this machine's controller started, or that this node has ranks of, by name.
std::vector<std::string> list_all_jobs();

/// Asks the job's nodes and its engine; remembers nothing, so it is right after any crash.
JobStatus job_status(const std::string& name, const Connect& connect = connect_node);

/// Stops a job everywhere and removes its state. @throws Error  kind `node`: what is still there, or could not be asked
StopReport down(const std::string& name, const Connect& connect = connect_node);

/// The job's nodes: from its record, else this machine.
Nodes nodes_of(const std::string& name, const Connect& connect = connect_node);

}  // namespace tandem::launch
