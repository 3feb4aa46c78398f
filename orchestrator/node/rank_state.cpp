#include "orchestrator/node/rank_state.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/common/error.h"
#include "runtime/common/file.h"

namespace tandem::node {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kSpecSuffix = ".spec.json";
constexpr int64_t kMostStateBytes = 4 << 20;

struct PhaseName {
  RankPhase phase;
  std::string_view name;
};
constexpr PhaseName kPhaseNames[] = {
    {RankPhase::starting, "starting"}, {RankPhase::running, "running"}, {RankPhase::restarting, "restarting"},
    {RankPhase::stopping, "stopping"}, {RankPhase::stopped, "stopped"}, {RankPhase::failed, "failed"},
};

RankPhase phase_from_name(std::string_view name) {
  for (const auto& entry : kPhaseNames)
    if (entry.name == name) return entry.phase;
  throw Error(ErrorKind::node, "unknown rank phase `" + std::string(name) + "`");
}

fs::path rank_file(const fs::path& folder, int rank, std::string_view suffix) {
  return folder / ("rank-" + std::to_string(rank) + std::string(suffix));
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::optional<json> read_json_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::error_code ignored;
  if (static_cast<int64_t>(fs::file_size(path, ignored)) > kMostStateBytes)
    throw Error(ErrorKind::node, "this state file is larger than any we write", path.string());
  try {
    return json::parse(file);
  } catch (const json::exception& e) {
    throw Error(ErrorKind::node, std::string("this state file is damaged: ") + e.what(), path.string(),
                "stop the job with `tandem down`, which removes it");
  }
}

/// Runs a reader of JSON fields; a missing or mistyped one becomes our error.
template <typename Read>
auto checked(const char* what, Read read) {
  try {
    return read();
  } catch (const json::exception& e) {
    throw Error(ErrorKind::node, std::string(what) + " is not as expected: " + e.what());
  }
}

json to_json(const ProcessId& process) {
  return {{"pid", process.pid}, {"start_ticks", process.start_ticks}};
}

ProcessId process_from_json(const json& j) {
  return {j.at("pid").get<int>(), j.at("start_ticks").get<int64_t>()};
}

}  // namespace

fs::path default_state_folder() {
  if (const std::string folder = environment("TANDEM_STATE_DIR"); !folder.empty()) return fs::absolute(folder);
  if (const std::string folder = environment("XDG_STATE_HOME"); !folder.empty()) return fs::path(folder) / "tandem";
  const std::string home = environment("HOME");
  if (home.empty())
    throw Error(ErrorKind::node, "no place for job state: neither TANDEM_STATE_DIR nor HOME is set", "",
                "set TANDEM_STATE_DIR");
  return fs::path(home) / ".local/state/tandem";
}

fs::path job_folder(const fs::path& state_folder, const std::string& job) {
  const bool harmless =
      !job.empty() && job.size() <= 128 && job[0] != '.' && std::all_of(job.begin(), job.end(), [](unsigned char c) {
        return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_' || c == '+';
      });
  if (!harmless)
    throw Error(ErrorKind::usage, "`" + printable(job, 128) + "` cannot be a job's name", "",
                "use letters, digits, `.`, `-`, `_` and `+`, at most 128");
  return state_folder / "jobs" / job;
}

std::vector<std::string> list_jobs(const fs::path& state_folder) {
  std::vector<std::string> jobs;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(state_folder / "jobs", ignored))
    if (entry.is_directory(ignored)) jobs.push_back(entry.path().filename().string());
  std::sort(jobs.begin(), jobs.end());
  return jobs;
}

fs::path log_folder(const fs::path& state_folder, const std::string& job) {
  return state_folder / "logs" / job_folder(state_folder, job).filename();
}

fs::path rank_log_path(const fs::path& folder, int rank) {
  return rank_file(folder, rank, ".log");
}

std::string_view rank_phase_name(RankPhase phase) {
  for (const auto& entry : kPhaseNames)
    if (entry.phase == phase) return entry.name;
  return "unknown";
}

std::string Ending::text() const {
  if (signal != 0) {
    const char* name = sigabbrev_np(signal);
    return std::string("killed by ") + (name != nullptr ? "SIG" + std::string(name) : std::to_string(signal));
  }
  std::string text = "exit code " + std::to_string(exit_code);
  if (exit_code == tandem::exit_code(ErrorKind::peer_lost)) text += " (another rank went away)";
  if (exit_code == tandem::exit_code(ErrorKind::memory)) text += " (memory floor reached)";
  return text;
}

json to_json(const RankSpec& spec) {
  return {{"schema_version", 1},
          {"job", spec.job},
          {"token", spec.token},
          {"rank", spec.rank},
          {"world_size", spec.world_size},
          {"argv", spec.argv},
          {"env", spec.env},
          {"working_directory", spec.working_directory},
          {"log_folder", spec.log_folder},
          {"launch_key", spec.launch_key},
          {"http_port", spec.http_port},
          {"rendezvous_port", spec.rendezvous_port},
          {"ports", spec.ports},
          {"log_file_bytes", spec.log_file_bytes},
          {"log_files", spec.log_files},
          {"stop_grace_ms", spec.stop_grace.count()},
          {"memory_floor_bytes", spec.memory_floor_bytes},
          {"proc_root", spec.proc_root},
          {"restart_budget", spec.restart_budget},
          {"restart_delay_ms", spec.restart_delay.count()},
          {"lease", to_json(spec.lease)}};
}

RankSpec rank_spec_from_json(const json& j) {
  return checked("the description of a rank", [&] {
    RankSpec spec;
    spec.job = j.at("job").get<std::string>();
    spec.token = j.at("token").get<std::string>();
    spec.rank = j.at("rank").get<int>();
    spec.world_size = j.at("world_size").get<int>();
    spec.argv = j.at("argv").get<std::vector<std::string>>();
    spec.env = j.at("env").get<std::map<std::string, std::string>>();
    spec.working_directory = j.at("working_directory").get<std::string>();
    spec.log_folder = j.at("log_folder").get<std::string>();
    spec.launch_key = j.at("launch_key").get<std::string>();
    spec.http_port = j.at("http_port").get<int>();
    spec.rendezvous_port = j.at("rendezvous_port").get<int>();
    spec.ports = j.at("ports").get<std::vector<int>>();
    spec.log_file_bytes = j.at("log_file_bytes").get<int64_t>();
    spec.log_files = j.at("log_files").get<int>();
    spec.stop_grace = std::chrono::milliseconds(j.at("stop_grace_ms").get<int64_t>());
    spec.memory_floor_bytes = j.at("memory_floor_bytes").get<int64_t>();
    spec.proc_root = j.at("proc_root").get<std::string>();
    spec.restart_budget = j.at("restart_budget").get<int>();
    spec.restart_delay = std::chrono::milliseconds(j.at("restart_delay_ms").get<int64_t>());
    spec.lease = process_from_json(j.at("lease"));
    return spec;
  });
}

json to_json(const RankState& state) {
  json j = {{"schema_version", 1},
            {"rank", state.rank},
            {"phase", rank_phase_name(state.phase)},
            {"boot_id", state.boot_id},
            {"supervisor", to_json(state.supervisor)},
            {"process", to_json(state.process)},
            {"started_at", state.started_at},
            {"changed_at", state.changed_at},
            {"restarts", state.restarts},
            {"restart_at", state.restart_at},
            {"reason", state.reason},
            {"last_log_lines", state.last_log_lines}};
  if (state.last_ending)
    j["last_ending"] = {{"exit_code", state.last_ending->exit_code},
                        {"signal", state.last_ending->signal},
                        {"text", state.last_ending->text()}};
  return j;
}

RankState rank_state_from_json(const json& j) {
  return checked("the state of a rank", [&] {
    RankState state;
    state.rank = j.at("rank").get<int>();
    state.phase = phase_from_name(j.at("phase").get<std::string>());
    state.boot_id = j.at("boot_id").get<std::string>();
    state.supervisor = process_from_json(j.at("supervisor"));
    state.process = process_from_json(j.at("process"));
    state.started_at = j.at("started_at").get<int64_t>();
    state.changed_at = j.at("changed_at").get<int64_t>();
    state.restarts = j.at("restarts").get<int>();
    state.restart_at = j.at("restart_at").get<int64_t>();
    state.reason = j.at("reason").get<std::string>();
    state.last_log_lines = j.at("last_log_lines").get<std::vector<std::string>>();
    if (j.contains("last_ending"))
      state.last_ending =
          Ending{j.at("last_ending").at("exit_code").get<int>(), j.at("last_ending").at("signal").get<int>()};
    return state;
  });
}

void write_rank_spec(const fs::path& folder, const RankSpec& spec) {
  write_file_atomic(rank_file(folder, spec.rank, kSpecSuffix), to_json(spec).dump(1), ErrorKind::node);
}

void write_rank_state(const fs::path& folder, const RankState& state) {
  // Log lines of strangers were made printable, so they are valid UTF-8; a reason may quote anything.
  write_file_atomic(rank_file(folder, state.rank, ".state.json"),
                    to_json(state).dump(1, ' ', false, json::error_handler_t::replace), ErrorKind::node);
}

RankSpec read_rank_spec(const fs::path& folder, int rank) {
  const fs::path path = rank_file(folder, rank, kSpecSuffix);
  const auto j = read_json_file(path);
  if (!j) throw Error(ErrorKind::node, "no rank " + std::to_string(rank) + " was started here", path.string());
  return rank_spec_from_json(*j);
}

std::optional<RankState> read_rank_state(const fs::path& folder, int rank) {
  const auto j = read_json_file(rank_file(folder, rank, ".state.json"));
  if (!j) return std::nullopt;
  return rank_state_from_json(*j);
}

std::vector<int> list_ranks(const fs::path& folder) {
  std::vector<int> ranks;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("rank-") || !name.ends_with(kSpecSuffix)) continue;
    const char* begin = name.data() + std::strlen("rank-");
    const char* end = name.data() + name.size() - kSpecSuffix.size();
    int rank = 0;
    const auto parsed = std::from_chars(begin, end, rank);
    if (parsed.ec == std::errc() && parsed.ptr == end && rank >= 0) ranks.push_back(rank);
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

bool RankStatus::failed() const {
  if (state.phase == RankPhase::failed || state.phase == RankPhase::restarting) return true;
  const bool should_run = state.phase == RankPhase::starting || state.phase == RankPhase::running;
  return should_run && !supervised;
}

std::string RankStatus::summary() const {
  const std::string phase(rank_phase_name(state.phase));
  const std::string because = state.reason.empty() ? "" : ": " + state.reason;
  switch (state.phase) {
    case RankPhase::starting:
    case RankPhase::running:
    case RankPhase::stopping:
      if (supervised) return phase + because;
      if (rebooted) return "lost: this machine restarted while it ran";
      return alive ? "lost: its supervisor was killed, its process still runs"
                   : "lost: its supervisor was killed, and the rank with it";
    case RankPhase::restarting: {
      const int64_t wait = std::max<int64_t>(0, state.restart_at - std::time(nullptr));
      return supervised ? "restarting in " + std::to_string(wait) + " s" + because : "failed" + because;
    }
    case RankPhase::stopped:
    case RankPhase::failed:
      return phase + because;
  }
  return phase;
}

RankStatus observe_rank(const fs::path& folder, int rank) {
  RankStatus status;
  const auto state = read_rank_state(folder, rank);
  if (!state) {
    status.state.rank = rank;
    status.state.phase = RankPhase::failed;
    status.state.reason = "it was never started: its supervisor did not come up";
    return status;
  }
  status.state = *state;
  status.rebooted = state->boot_id != boot_id();
  if (!status.rebooted) {
    status.supervised = is_alive(state->supervisor);
    status.alive = is_alive(state->process);
  }
  return status;
}

json to_json(const RankStatus& status) {
  json j = to_json(status.state);
  j.erase("schema_version");
  j["supervised"] = status.supervised;
  j["alive"] = status.alive;
  j["rebooted"] = status.rebooted;
  j["failed"] = status.failed();
  j["summary"] = status.summary();
  return j;
}

RankStatus rank_status_from_json(const json& j) {
  return checked("the status of a rank", [&] {
    RankStatus status;
    status.state = rank_state_from_json(j);
    status.supervised = j.at("supervised").get<bool>();
    status.alive = j.at("alive").get<bool>();
    status.rebooted = j.at("rebooted").get<bool>();
    return status;
  });
}

}  // namespace tandem::node
