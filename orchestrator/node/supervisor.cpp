// One process watches one rank. It has one thread and one loop, because everything it reacts to can be waited for in
// one place: signals (a signalfd), the rank's output (a pipe), and the clock (poll's timeout). The rank's end is seen
// with waitid(WNOWAIT) before it is reaped: as long as the zombie holds its pid, its process group's id cannot be
// reused, so the group can be killed without hitting a stranger.
#include "orchestrator/node/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "orchestrator/node/protocol.h"
#include "orchestrator/node/rank_state.h"
#include "orchestrator/node/rotating_log.h"
#include "runtime/common/error.h"
#include "runtime/common/log.h"
#include "runtime/common/units.h"

namespace tandem::node {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kTick{200};
constexpr int kLogLinesKept = 40;
/// One sample below the floor may be a passing burst; a second one in a row is not.
constexpr int kLowSamplesToStop = 2;
constexpr int kOomScoreAdjustment = 500;

/// MemAvailable in bytes, or -1 when it cannot be read.
int64_t available_memory(const std::string& proc_root) {
  std::ifstream file(proc_root + "/meminfo");
  std::string key, unit;
  int64_t kibibytes = 0;
  while (file >> key >> kibibytes) {
    if (key == "MemAvailable:") return kibibytes * 1024;
    std::getline(file, unit);
  }
  return -1;
}

class Supervisor {
 public:
  Supervisor(fs::path folder, RankSpec spec)
      : folder_(std::move(folder)),
        spec_(std::move(spec)),
        log_(rank_log_path(spec_.log_folder, spec_.rank).string(), spec_.log_file_bytes, spec_.log_files) {
    state_.rank = spec_.rank;
    state_.boot_id = boot_id();
    state_.supervisor = *find_process(getpid());
    delay_ = spec_.restart_delay;
  }

  /// Takes over the signals and starts the rank. @throws Error
  void start() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int s : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGCHLD}) sigaddset(&signals, s);
    sigprocmask(SIG_BLOCK, &signals, nullptr);
    signals_ = FileDescriptor(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!signals_) throw Error(ErrorKind::node, std::string("cannot wait for signals: ") + std::strerror(errno));
    prctl(PR_SET_CHILD_SUBREAPER, 1);  // what the rank's processes leave behind becomes our child, not init's
    start_rank();
  }

  void loop() {
    while (!done_) {
      pollfd waits[] = {{signals_.get(), POLLIN, 0}, {output_.get(), POLLIN, 0}};
      poll(waits, output_ ? 2 : 1, static_cast<int>(kTick.count()));
      drain_output();
      handle_signals();
      if (process_running_) check_for_end();
      on_clock();
    }
  }

 private:
  void start_rank() {
    auto [read_end, write_end] = make_pipe();
    fcntl(read_end.get(), F_SETFL, O_NONBLOCK);
    SpawnOptions options;
    options.argv = spec_.argv;
    options.working_directory = spec_.working_directory;
    options.environment = rank_environment();
    options.stdout_fd = write_end.get();
    options.stderr_fd = write_end.get();
    options.dies_with_parent = true;
    options.oom_score_adj = kOomScoreAdjustment;
    pid_ = spawn(options);
    process_running_ = true;
    output_ = std::move(read_end);
    state_.process = find_process(pid_).value_or(ProcessId{pid_, 0});
    state_.started_at = std::time(nullptr);
    set_phase(ready_once_ ? RankPhase::running : RankPhase::starting, "");
    log_info("rank started", {{"pid", pid_}, {"program", spec_.argv[0]}});
  }

  std::vector<std::pair<std::string, std::string>> rank_environment() const {
    std::vector<std::pair<std::string, std::string>> result;
    for (auto& [name, value] : own_environment()) {
      // A rank has its files already; a hub's password has no business in an engine's environment.
      const bool secret = name == "HF_TOKEN" || name == "HUGGING_FACE_HUB_TOKEN";
      if (!secret && !spec_.env.contains(name) && name != kTokenVariable) result.emplace_back(name, value);
    }
    result.insert(result.end(), spec_.env.begin(), spec_.env.end());
    result.emplace_back(kTokenVariable, spec_.token);
    return result;
  }

  void drain_output() {
    if (!output_) return;
    char block[64 << 10];
    for (int i = 0; i < 64; ++i) {  // bounded: a rank that writes without end must not keep us from its signals
      const ssize_t bytes = read(output_.get(), block, sizeof block);
      if (bytes < 0) return;
      if (bytes == 0) {
        output_.close();
        return;
      }
      log_.write(std::string_view(block, static_cast<size_t>(bytes)));
    }
  }

  void handle_signals() {
    signalfd_siginfo info{};
    while (read(signals_.get(), &info, sizeof info) == sizeof info) {
      switch (info.ssi_signo) {
        case SIGTERM:
        case SIGINT:
        case SIGHUP:
          begin_stop("it was asked to stop", RankPhase::stopped);
          break;
        case SIGUSR1:
          ready_once_ = true;
          if (state_.phase == RankPhase::starting) set_phase(RankPhase::running, "");
          break;
        default:
          break;  // SIGCHLD: check_for_end looks
      }
    }
  }

  /// Asks the rank's whole group to end; check_for_end and on_clock do the rest.
  void begin_stop(const std::string& reason, RankPhase final_phase) {
    if (stop_deadline_) return;
    final_phase_ = final_phase;
    stop_reason_ = reason;
    stop_deadline_ = Clock::now() + spec_.stop_grace;
    if (!process_running_) {
      finish();
      return;
    }
    set_phase(RankPhase::stopping, reason);
    log_info("stopping the rank", {{"reason", reason}});
    kill(-pid_, SIGTERM);
  }

  void check_for_end() {
    siginfo_t info{};
    if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    kill(-pid_, SIGKILL);
    const int unreaped = sweep_processes(spec_.token);
    drain_output();
    output_.close();
    int status = 0;
    waitpid(pid_, &status, 0);
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    process_running_ = false;
    Ending ending;
    if (WIFSIGNALED(status))
      ending.signal = WTERMSIG(status);
    else
      ending.exit_code = WEXITSTATUS(status);
    on_rank_end(ending, unreaped);
  }

  void on_rank_end(const Ending& ending, int unreaped) {
    state_.process = {};
    state_.last_ending = ending;
    state_.last_log_lines = last_lines(rank_log_path(spec_.log_folder, spec_.rank).string(), kLogLinesKept);
    log_info("rank ended", {{"how", ending.text()}});
    if (unreaped > 0) log_error("processes of the rank would not end", {{"count", unreaped}});
    if (stop_deadline_) {
      finish();
      return;
    }
    if (!ready_once_ || state_.restarts >= spec_.restart_budget || !worth_restarting(ending)) {
      set_phase(RankPhase::failed, ending.text());
      done_ = true;
      return;
    }
    state_.restart_at = std::time(nullptr) + std::chrono::ceil<std::chrono::seconds>(delay_).count();
    restart_due_ = Clock::now() + delay_;
    delay_ *= 2;
    set_phase(RankPhase::restarting, ending.text());
  }

  /// A rank that refused its flags, its pack or the node's memory would refuse them again.
  static bool worth_restarting(const Ending& ending) {
    if (ending.signal != 0) return true;
    return ending.exit_code == exit_code(ErrorKind::internal) || ending.exit_code == exit_code(ErrorKind::peer_lost);
  }

  void on_clock() {
    if (done_) return;
    const auto now = Clock::now();
    if (stop_deadline_ && process_running_ && now >= *stop_deadline_) {
      log_warn("the rank did not end in its grace time, killing it", {{"grace_ms", spec_.stop_grace.count()}});
      killed_ = true;
      kill(-pid_, SIGKILL);
      stop_deadline_ = now + milliseconds(1'000);  // again, should it hang in the kernel
    }
    if (!ready_once_ && spec_.lease.pid != 0 && !is_alive(spec_.lease))
      begin_stop("whoever started it went away before it was ready", RankPhase::failed);
    if (process_running_ && !stop_deadline_) check_memory();
    if (state_.phase == RankPhase::restarting && now >= restart_due_) restart();
  }

  void check_memory() {
    if (spec_.memory_floor_bytes <= 0) return;
    const int64_t available = available_memory(spec_.proc_root);
    low_samples_ = available >= 0 && available < spec_.memory_floor_bytes ? low_samples_ + 1 : 0;
    if (low_samples_ >= kLowSamplesToStop)
      begin_stop("the node had " + format_bytes(available) + " of memory left, the recipe keeps " +
                     format_bytes(spec_.memory_floor_bytes) + " free",
                 RankPhase::failed);
  }

  void restart() {
    ++state_.restarts;
    state_.restart_at = 0;
    try {
      start_rank();
    } catch (const Error& e) {
      set_phase(RankPhase::failed, std::string("it could not be started again: ") + e.what());
      done_ = true;
    }
  }

  void finish() {
    set_phase(final_phase_, killed_ ? stop_reason_ + "; it had to be killed" : stop_reason_);
    done_ = true;
  }

  void set_phase(RankPhase phase, const std::string& reason) {
    state_.phase = phase;
    state_.reason = reason;
    state_.changed_at = std::time(nullptr);
    try {
      write_rank_state(folder_, state_);
    } catch (const Error& e) {
      log_error("cannot record the rank's state", {{"error", e.what()}, {"where", e.where()}});
    }
  }

  fs::path folder_;
  RankSpec spec_;
  RotatingLog log_;
  RankState state_;
  FileDescriptor signals_;
  FileDescriptor output_;
  int pid_ = 0;
  bool process_running_ = false;
  bool ready_once_ = false;
  bool killed_ = false;
  bool done_ = false;
  int low_samples_ = 0;
  milliseconds delay_{0};
  Clock::time_point restart_due_;
  std::optional<Clock::time_point> stop_deadline_;
  RankPhase final_phase_ = RankPhase::stopped;
  std::string stop_reason_;
};

void redirect(int from, const fs::path& to, int flags) {
  const FileDescriptor file(open(to.c_str(), flags | O_CLOEXEC, 0600));
  if (file) dup2(file.get(), from);
}

void say(const nlohmann::json& line) {
  std::cout << line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
}

}  // namespace

int sweep_processes(const std::string& token) {
  if (token.empty()) return 0;
  const auto deadline = Clock::now() + std::chrono::seconds(5);
  for (;;) {
    const auto left = processes_with_environment(kTokenVariable, token);
    if (left.empty()) return 0;
    for (const ProcessId& process : left) send_signal(process, SIGKILL);
    if (Clock::now() >= deadline) return static_cast<int>(left.size());
    std::this_thread::sleep_for(milliseconds(10));
  }
}

int run_supervisor(const fs::path& job_folder, int rank) {
  const pid_t child = fork();
  if (child < 0) {
    say({{"error", error_to_json(Error(ErrorKind::node, std::string("cannot fork: ") + std::strerror(errno)))}});
    return exit_code(ErrorKind::node);
  }
  if (child > 0) return 0;  // stdout stays open in the child: the caller reads until the child closes it

  setsid();
  redirect(STDIN_FILENO, "/dev/null", O_RDONLY);
  try {
    RankSpec spec = read_rank_spec(job_folder, rank);
    const std::string log = "supervisor-" + std::to_string(rank) + ".log";
    redirect(STDERR_FILENO, fs::path(spec.log_folder) / log, O_WRONLY | O_CREAT | O_APPEND);
    init_logging(LogLevel::info, "", rank);
    Supervisor supervisor(job_folder, std::move(spec));
    supervisor.start();
    say({{"supervisor", {{"pid", getpid()}}}});
    redirect(STDOUT_FILENO, "/dev/null", O_WRONLY);
    supervisor.loop();
    return 0;
  } catch (const Error& e) {
    log_error("cannot run the rank", {{"error", e.what()}});
    say({{"error", error_to_json(e)}});
    return exit_code(e.kind());
  }
}

}  // namespace tandem::node
