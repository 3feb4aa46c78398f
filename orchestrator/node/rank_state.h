#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "orchestrator/node/process.h"

namespace tandem::node {

// What a node keeps about the ranks that run on it. One folder a job:
//   STATE/jobs/NAME/rank-R.spec.json    what to run (written once, by `start`)
//   STATE/jobs/NAME/rank-R.state.json   how it goes (replaced whole at every change, by the rank's supervisor)
// and another for what they said, which outlives a failed start so that there is something to read:
//   STATE/logs/NAME/rank-R.log, .log.1  output of the rank
//   STATE/logs/NAME/supervisor-R.log    what its supervisor did
// All of it is readable by its owner only: a rank's environment may hold secrets.

/// $TANDEM_STATE_DIR, else $XDG_STATE_HOME/tandem, else ~/.local/state/tandem.
std::filesystem::path default_state_folder();

/// A job's folder on this node. @throws Error  kind `usage`, when the name could lead out of the state folder
std::filesystem::path job_folder(const std::filesystem::path& state_folder, const std::string& job);
std::vector<std::string> list_jobs(const std::filesystem::path& state_folder);

std::filesystem::path log_folder(const std::filesystem::path& state_folder, const std::string& job);
std::filesystem::path rank_log_path(const std::filesystem::path& log_folder, int rank);

/// Everything a supervisor needs to run one rank.
struct RankSpec {
  std::string job;
  std::string token;  ///< random; in the environment of all the rank's processes, so that none can hide
  int rank = 0;
  int world_size = 1;
  std::vector<std::string> argv;           ///< program and arguments; never passed to a shell
  std::map<std::string, std::string> env;  ///< added to the node's own environment
  std::string working_directory;
  std::string log_folder;
  std::string launch_key;  ///< of the plan it belongs to: tells "already running" from "something else is running"
  int http_port = 0, rendezvous_port = 0;  ///< of the job; informative
  std::vector<int> ports;  ///< that it listens on: found in use, the start is refused; proved free after a stop

  int64_t log_file_bytes = int64_t{16} << 20;
  int log_files = 4;
  std::chrono::milliseconds stop_grace{10'000};  ///< between SIGTERM and SIGKILL

  int64_t memory_floor_bytes = 0;  ///< MemAvailable below this stops the rank; 0: no guard
  std::string proc_root = "/proc";

  // Restarts begin only after the job was ready once (`keep`): a rank that dies while starting fails the whole `up`.
  // The first wait must be longer than the ranks' peer timeout. Then all old ranks are gone before a new one starts,
  // on every node, without anybody having to coordinate it.
  int restart_budget = 0;
  std::chrono::milliseconds restart_delay{1'000};  ///< doubles with every restart

  /// The helper that started it. While the job is not yet ready, the rank ends with this process, so a controller that
  /// is killed, or cut off, leaves nothing half-started behind.
  ProcessId lease;
};

/// The environment variable that marks a rank's processes with RankSpec::token.
inline constexpr const char* kTokenVariable = "TANDEM_RANK_TOKEN";

enum class RankPhase {
  starting,    ///< runs; the job was not ready yet
  running,     ///< runs; the job was ready
  restarting,  ///< ended, waits to be started again
  stopping,    ///< asked to end
  stopped,     ///< ended because it was asked to
  failed,      ///< ended by itself, and stays down
};
std::string_view rank_phase_name(RankPhase phase);

/// How a process ended.
struct Ending {
  int exit_code = 0;
  int signal = 0;            ///< not 0: killed by it
  std::string text() const;  ///< "exit code 6 (another rank went away)", "killed by SIGKILL"
};

struct RankState {
  int rank = 0;
  RankPhase phase = RankPhase::starting;
  std::string boot_id;
  ProcessId supervisor;
  ProcessId process;       ///< pid 0 when none runs
  int64_t started_at = 0;  ///< seconds of the Unix epoch
  int64_t changed_at = 0;
  int restarts = 0;
  int64_t restart_at = 0;                   ///< while restarting
  std::optional<Ending> last_ending;        ///< of the latest process that ended
  std::string reason;                       ///< why it was stopped or ended, one sentence; "" while all is well
  std::vector<std::string> last_log_lines;  ///< of the latest process that ended
};

nlohmann::json to_json(const RankSpec& spec);
RankSpec rank_spec_from_json(const nlohmann::json& json);
nlohmann::json to_json(const RankState& state);
RankState rank_state_from_json(const nlohmann::json& json);

void write_rank_spec(const std::filesystem::path& job_folder, const RankSpec& spec);
void write_rank_state(const std::filesystem::path& job_folder, const RankState& state);
/// @throws Error  kind `node`, when the file is not what a supervisor writes
RankSpec read_rank_spec(const std::filesystem::path& job_folder, int rank);
/// Nothing when the rank was never started here.
std::optional<RankState> read_rank_state(const std::filesystem::path& job_folder, int rank);
/// Ranks that have a spec in this folder, ascending.
std::vector<int> list_ranks(const std::filesystem::path& job_folder);

/// A rank as it is now: the supervisor's record held against the processes that exist. Where they disagree, the
/// processes are right: a supervisor that was killed, or a machine that restarted, left its record behind.
struct RankStatus {
  RankState state;
  bool supervised = false;      ///< its supervisor lives
  bool alive = false;           ///< its process lives
  bool rebooted = false;        ///< the machine restarted since the record was written
  bool failed() const;          ///< ended, or lost, without having been asked to
  std::string summary() const;  ///< "running", "restarting in 12 s: killed by SIGKILL", "lost: this machine restarted"
};
RankStatus observe_rank(const std::filesystem::path& job_folder, int rank);
nlohmann::json to_json(const RankStatus& status);
RankStatus rank_status_from_json(const nlohmann::json& json);

}  // namespace tandem::node
