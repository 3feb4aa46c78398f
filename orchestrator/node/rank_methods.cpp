#include "orchestrator/node/rank_methods.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "orchestrator/node/process.h"
#include "orchestrator/node/protocol.h"
#include "orchestrator/node/rank_state.h"
#include "orchestrator/node/rotating_log.h"
#include "orchestrator/node/supervisor.h"
#include "runtime/common/error.h"

namespace tandem::node {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kLook{100};
/// What a supervisor needs on top of the grace time: two kills, sweeping, writing its record.
constexpr milliseconds kStopMargin{15'000};
constexpr milliseconds kStartLimit{30'000};
/// Sockets of killed processes close a moment after the processes are gone.
constexpr milliseconds kPortLimit{3'000};

fs::path state_folder(const json& params) {
  const std::string given = params.value("state_folder", "");
  return given.empty() ? default_state_folder() : fs::path(given);
}

std::string random_token() {
  std::random_device random;
  std::string token;
  for (int i = 0; i < 32; ++i) token += "0123456789abcdef"[random() & 15];
  return token;
}

std::string port_sentence(const PortOwner& owner) {
  return owner.pid == 0 ? "another user's process" : "pid " + std::to_string(owner.pid) + " (" + owner.command + ")";
}

/// Private folders: specs hold environments, logs hold what users asked.
void make_private_folder(const fs::path& folder) {
  make_folders(folder, ErrorKind::node);
  std::error_code ignored;
  fs::permissions(folder, fs::perms::owner_all, ignored);
}

/// Reads one line of a pipe, up to the limit. "" when none came.
std::string read_line(int fd, milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  std::string text;
  while (text.find('\n') == std::string::npos && text.size() < kMaxLineBytes) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    pollfd wait{fd, POLLIN, 0};
    if (left.count() <= 0 || poll(&wait, 1, static_cast<int>(left.count())) == 0) return "";
    char block[4096];
    const ssize_t bytes = read(fd, block, sizeof block);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return "";
    text.append(block, static_cast<size_t>(bytes));
  }
  return text.substr(0, text.find('\n'));
}

void refuse_what_runs(const fs::path& folder, const RankSpec& spec) {
  const auto ranks = list_ranks(folder);
  if (std::find(ranks.begin(), ranks.end(), spec.rank) != ranks.end()) {
    const RankStatus status = observe_rank(folder, spec.rank);
    if (status.supervised || status.alive)
      throw Error(ErrorKind::launch,
                  "rank " + std::to_string(spec.rank) + " of `" + spec.job + "` is still there: " + status.summary(),
                  folder.string(), "tandem down " + spec.job);
  }
  for (const int port : spec.ports)
    if (const auto owner = port_owner(port))
      throw Error(ErrorKind::launch, "port " + std::to_string(port) + " is in use by " + port_sentence(*owner), "",
                  "end that process, or choose another port");
}

json start(const Request& request, const std::string& executable) {
  RankSpec spec = rank_spec_from_json(request.params.at("spec"));
  const fs::path state = state_folder(request.params);
  const fs::path folder = job_folder(state, spec.job);
  refuse_what_runs(folder, spec);

  const std::string rank = std::to_string(spec.rank);
  spec.token = random_token();
  spec.lease = *find_process(getpid());
  spec.log_folder = log_folder(state, spec.job).string();
  if (spec.working_directory.empty()) spec.working_directory = folder.string();
  make_private_folder(folder);
  make_private_folder(spec.log_folder);
  std::error_code ignored;
  fs::remove(folder / ("rank-" + rank + ".state.json"), ignored);
  for (const auto& entry : fs::directory_iterator(spec.log_folder, ignored)) {  // of an earlier run
    const std::string name = entry.path().filename().string();
    if (name.starts_with("rank-" + rank + ".") || name == "supervisor-" + rank + ".log") fs::remove(entry, ignored);
  }
  write_rank_spec(folder, spec);

  auto [read_end, write_end] = make_pipe();
  SpawnOptions options;
  options.argv = {executable, "node", "supervise", "--folder", folder.string(), "--rank", rank};
  options.environment = own_environment();
  options.stdout_fd = write_end.get();
  const int pid = spawn(options);
  write_end.close();
  const std::string line = read_line(read_end.get(), kStartLimit);
  waitpid(pid, nullptr, 0);  // it forked at once; the supervisor itself is not our child

  const auto answer = parse_line(line);
  if (!answer)
    throw Error(ErrorKind::launch, "the supervisor of rank " + rank + " did not come up", spec.log_folder,
                "look into supervisor-" + rank + ".log there");
  if (answer->contains("error")) throw error_from_json(answer->at("error")).at("rank " + rank);
  return {{"status", to_json(observe_rank(folder, spec.rank))}};
}

json rank_statuses(const fs::path& folder) {
  json ranks = json::array();
  for (const int rank : list_ranks(folder)) ranks.push_back(to_json(observe_rank(folder, rank)));
  return ranks;
}

json keep(const Request& request) {
  const fs::path folder = job_folder(state_folder(request.params), request.params.at("job").get<std::string>());
  const auto deadline = Clock::now() + milliseconds(10'000);
  for (const int rank : list_ranks(folder)) send_signal(observe_rank(folder, rank).state.supervisor, SIGUSR1);
  for (const int rank : list_ranks(folder)) {
    for (;;) {
      const RankStatus status = observe_rank(folder, rank);
      if (status.state.phase == RankPhase::running && status.supervised) break;
      if (status.failed() || Clock::now() > deadline)
        throw Error(ErrorKind::launch, "rank " + std::to_string(rank) + " is " + status.summary());
      std::this_thread::sleep_for(milliseconds(10));
    }
  }
  return {{"ranks", rank_statuses(folder)}};
}

/// Ends the ranks of a job one knows by their files, then everything that carries their tokens.
json stop(const Request& request) {
  const json& params = request.params;
  const std::string job = params.at("job").get<std::string>();
  const fs::path state = state_folder(params);
  const fs::path folder = job_folder(state, job);

  struct Stopping {
    RankSpec spec;
    ProcessId supervisor;
    bool supervised = false;
  };
  std::vector<Stopping> ranks;
  for (const int rank : list_ranks(folder)) {
    const RankStatus status = observe_rank(folder, rank);
    ranks.push_back({read_rank_spec(folder, rank), status.state.supervisor, status.supervised});
    if (status.supervised) send_signal(status.state.supervisor, SIGTERM);
  }
  // Not cancellable from here on: a stop that was begun is finished, so that Ctrl-C cannot leave half a job.
  for (const Stopping& rank : ranks)
    if (rank.supervised && !wait_until_gone(rank.supervisor, rank.spec.stop_grace + kStopMargin))
      send_signal(rank.supervisor, SIGKILL);  // the kernel then kills the rank
  for (const Stopping& rank : ranks) sweep_processes(rank.spec.token);

  json processes_left = json::array();
  json ports_left = json::array();
  for (const Stopping& rank : ranks) {
    for (const ProcessId& process : processes_with_environment(kTokenVariable, rank.spec.token))
      processes_left.push_back({{"pid", process.pid}, {"command", command_line(process.pid)}});
    for (const int port : rank.spec.ports) {
      const auto deadline = Clock::now() + kPortLimit;
      auto owner = port_owner(port);
      while (owner && Clock::now() < deadline) {
        std::this_thread::sleep_for(milliseconds(50));
        owner = port_owner(port);
      }
      // A port that a stranger took after our rank ended is not ours to report; while our rank ran it was ours.
      if (owner && rank.supervised)
        ports_left.push_back({{"port", port}, {"pid", owner->pid}, {"command", owner->command}});
    }
  }
  const json statuses = rank_statuses(folder);
  const bool clean = processes_left.empty();
  std::error_code ignored;
  if (clean && params.value("remove", true)) {
    fs::remove_all(folder, ignored);
    fs::remove(folder.parent_path(), ignored);  // only when empty
  }
  if (clean && params.value("remove_logs", true)) {
    const fs::path logs = log_folder(state, job);
    fs::remove_all(logs, ignored);
    fs::remove(logs.parent_path(), ignored);
  }
  return {{"ranks", statuses},
          {"processes_left", processes_left},
          {"ports_left", ports_left},
          {"removed", !fs::exists(folder)}};
}

json job_status(const fs::path& state, const std::string& job) {
  const fs::path folder = job_folder(state, job);
  json ports = json::array();
  std::string launch_key;
  for (const int rank : list_ranks(folder)) {
    const RankSpec spec = read_rank_spec(folder, rank);
    launch_key = spec.launch_key;
    for (const int port : spec.ports) ports.push_back(port);
  }
  return {{"job", job}, {"launch_key", launch_key}, {"ports", ports}, {"ranks", rank_statuses(folder)}};
}

json status(const Request& request) {
  const fs::path state = state_folder(request.params);
  const std::string wanted = request.params.value("job", "");
  json jobs = json::array();
  for (const std::string& job : list_jobs(state))
    if (wanted.empty() || wanted == job) jobs.push_back(job_status(state, job));
  return {{"jobs", jobs}};
}

json logs(const Request& request) {
  const json& params = request.params;
  const fs::path folder = log_folder(state_folder(params), params.at("job").get<std::string>());
  const int only_rank = params.value("rank", -1);
  const int lines = std::clamp(params.value("lines", 50), 0, 100'000);
  std::vector<std::pair<int, fs::path>> files;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    int rank = -1;
    const std::string name = entry.path().filename().string();
    if (sscanf(name.c_str(), "rank-%d.log", &rank) != 1 || name != rank_log_path("", rank)) continue;
    if (only_rank < 0 || rank == only_rank) files.emplace_back(rank, entry.path());
  }
  if (files.empty())
    throw Error(ErrorKind::node, only_rank < 0 ? "there are no logs of this job" : "there is no log of this rank",
                folder.string());
  std::sort(files.begin(), files.end());
  std::vector<LogFollower> followers;
  for (const auto& [rank, path] : files) {
    followers.emplace_back(path.string(), /*from_end=*/true);
    for (const std::string& line : last_lines(path.string(), lines))
      request.send_event({{"rank", rank}, {"line", line}});
  }
  while (params.value("follow", false) && !request.stop.stop_requested()) {
    for (size_t i = 0; i < files.size(); ++i)
      for (const std::string& line : followers[i].poll())
        request.send_event({{"rank", files[i].first}, {"line", line}});
    std::this_thread::sleep_for(kLook);
  }
  return json::object();
}

json watch(const Request& request) {
  const fs::path folder = job_folder(state_folder(request.params), request.params.at("job").get<std::string>());
  std::string last;
  while (!request.stop.stop_requested()) {
    const json ranks = rank_statuses(folder);
    const bool failed = std::any_of(ranks.begin(), ranks.end(), [](const json& r) { return r["failed"] == true; });
    if (std::string text = ranks.dump(-1, ' ', false, json::error_handler_t::replace); text != last) {
      request.send_event({{"ranks", ranks}});
      last = std::move(text);
    }
    if (failed || ranks.empty()) break;
    std::this_thread::sleep_for(kLook);
  }
  return {{"ranks", rank_statuses(folder)}};
}

}  // namespace

Methods rank_methods(std::string executable) {
  if (executable.empty()) executable = own_executable();
  return {{"start", [executable](const Request& r) { return start(r, executable); }},
          {"keep", keep},
          {"stop", stop},
          {"status", status},
          {"logs", logs},
          {"watch", watch}};
}

}  // namespace tandem::node
