#include "orchestrator/launch/jobs.h"

#include <algorithm>
#include <set>

#include "orchestrator/node/rank_state.h"

namespace tandem::launch {
namespace {

constexpr std::chrono::milliseconds kHealthLimit{3'000};

std::vector<ClusterNode> job_nodes(const std::optional<JobRecord>& record) {
  if (record && !record->nodes.empty()) return record->nodes;
  ClusterNode local;
  local.name = "local";
  local.address = local.link_address = "127.0.0.1";
  return {local};
}

/// The state that ranks and engine together mean, and why.
void judge(JobStatus& job) {
  const auto rank_name = [](const RankOnNode& rank) { return "rank " + std::to_string(rank.status.state.rank); };
  if (job.ranks.empty()) {
    job.state = job.record ? JobState::failed : JobState::stopped;
    if (job.record) job.reason = "its ranks are gone without a trace";
    return;
  }
  bool starting = false;
  for (const RankOnNode& rank : job.ranks) {
    const bool asked = rank.status.state.phase == node::RankPhase::stopped;
    if (rank.status.failed() || asked) {
      // The rank that lost its peer is a consequence; the one that went first is the reason.
      const auto& ending = rank.status.state.last_ending;
      const bool consequence = ending && ending->exit_code == exit_code(ErrorKind::peer_lost);
      if (job.reason.empty() || (job.state == JobState::failed && !consequence))
        job.reason = rank_name(rank) + " " + rank.status.summary();
      job.state = JobState::failed;
    }
    starting = starting || rank.status.state.phase == node::RankPhase::starting;
  }
  if (job.state == JobState::failed) return;
  job.state = starting ? JobState::starting : JobState::running;
  if (starting || !job.record || !job.record->tandem_engine) return;
  if (!job.health) {
    job.state = JobState::failed;
    job.reason =
        "its ranks run but it does not answer on " + job.record->address + ":" + std::to_string(job.record->http_port);
  } else if (job.health->phase != "ready") {
    job.state = job.health->phase == "failed" ? JobState::failed : JobState::starting;
    job.reason = printable(job.health->phase + (job.health->message.empty() ? "" : ": " + job.health->message), 300);
  }
}

}  // namespace

std::string_view job_state_name(JobState state) {
  switch (state) {
    case JobState::running:
      return "running";
    case JobState::starting:
      return "starting";
    case JobState::failed:
      return "failed";
    case JobState::stopped:
      return "stopped";
    case JobState::unknown:
      return "unknown";
  }
  return "unknown";
}

int job_state_exit_code(JobState state) {
  if (state == JobState::failed) return exit_code(ErrorKind::health);
  return state == JobState::unknown ? exit_code(ErrorKind::node) : 0;
}

std::vector<std::string> list_all_jobs() {
  const auto state_folder = node::default_state_folder();
  std::set<std::string> names;
  for (const std::string& name : list_records(state_folder)) names.insert(name);
  for (const std::string& name : node::list_jobs(state_folder)) names.insert(name);
  return {names.begin(), names.end()};
}

Nodes nodes_of(const std::string& name, const Connect& connect) {
  return Nodes(job_nodes(read_record(node::default_state_folder(), name)), connect);
}

JobStatus job_status(const std::string& name, const Connect& connect) {
  JobStatus job;
  job.name = name;
  job.record = read_record(node::default_state_folder(), name);
  try {
    Nodes nodes(job_nodes(job.record), connect);
    job.ranks = rank_statuses(nodes, name);
  } catch (const Error& e) {
    job.state = JobState::unknown;
    job.reason = (e.where().empty() ? "" : e.where() + ": ") + e.what();
    return job;
  }
  if (job.record && job.record->tandem_engine && !job.ranks.empty())
    job.health = health::read_health(job.record->address, job.record->http_port, kHealthLimit);
  judge(job);
  return job;
}

StopReport down(const std::string& name, const Connect& connect) {
  const auto state_folder = node::default_state_folder();
  const JobLock lock(state_folder, name, "down");
  Nodes nodes = nodes_of(name, connect);
  StopReport report = stop_job(nodes, name, {});
  if (report.clean()) {
    remove_record(state_folder, name);
    return report;
  }
  std::string what;
  for (const std::string& left : report.left) what += (what.empty() ? "" : "; ") + left;
  for (const Error& error : report.unreachable)
    what += (what.empty() ? "" : "; ") + error.where() + ": " + error.what();
  throw Error(ErrorKind::node, "`" + name + "` is not down: " + what, "", "end these by hand, then run this again");
}

}  // namespace tandem::launch
