// Supervisors as they are used: `tandem node serve` starts them, the fake runtime is what they run.
#include "orchestrator/node/supervisor.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "orchestrator/node/client.h"
#include "orchestrator/node/rank_state.h"
#include "orchestrator/node/rotating_log.h"
#include "tests/catch.h"
#include "tests/orchestrator/temporary_folder.h"

using namespace tandem;
using namespace tandem::node;
using nlohmann::json;
using tandem::test::TemporaryFolder;
using namespace std::chrono_literals;

namespace {

const std::string kTandem = std::string(TANDEM_BINARY_DIR) + "/bin/tandem";
const std::string kFakeRuntime = std::string(TANDEM_BINARY_DIR) + "/tests/fake_runtime";

int free_port() {
  const FileDescriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  socklen_t length = sizeof address;
  getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.sin_port);
}

/// A node helper with a state folder of its own; whatever a test leaves running is stopped at its end.
struct TestNode {
  TemporaryFolder state;
  std::unique_ptr<NodeClient> client = std::make_unique<NodeClient>("local", start_local_node(kTandem));

  ~TestNode() {
    if (!client) client = std::make_unique<NodeClient>("local", start_local_node(kTandem));
    for (const std::string& job : list_jobs(state.path())) stop(job);
  }

  json call(const std::string& method, json params) {
    params["state_folder"] = state.path().string();
    return client->call(method, params);
  }
  json start(const RankSpec& spec) { return call("start", {{"spec", to_json(spec)}}).at("status"); }
  json stop(const std::string& job) { return call("stop", {{"job", job}}); }
  std::filesystem::path folder(const std::string& job = "job") const { return job_folder(state.path(), job); }
  RankStatus observe(int rank = 0) const { return observe_rank(folder(), rank); }

  /// Waits for a state that has to come; the limit only ends a test that has failed.
  RankStatus wait_for(RankPhase phase, int rank = 0) const {
    for (int i = 0; i < 3000; ++i) {
      const RankStatus status = observe(rank);
      if (status.state.phase == phase) return status;
      std::this_thread::sleep_for(10ms);
    }
    FAIL("rank " << rank << " is " << observe(rank).summary() << ", expected " << rank_phase_name(phase));
    return {};
  }
  void wait_for_log(const std::string& text, int rank = 0) const {
    const auto path = rank_log_path(log_folder(state.path(), "job"), rank).string();
    for (int i = 0; i < 3000; ++i) {
      for (const std::string& line : last_lines(path, 100))
        if (line.find(text) != std::string::npos) return;
      std::this_thread::sleep_for(10ms);
    }
    FAIL("the log never said " << text);
  }
};

RankSpec fake_rank(const std::string& orders, int rank = 0, int world_size = 1, int rendezvous = 0) {
  RankSpec spec;
  spec.job = "job";
  spec.rank = rank;
  spec.world_size = world_size;
  const int port = free_port();
  spec.argv = {kFakeRuntime,   "serve",
               "--rank",       std::to_string(rank),
               "--world-size", std::to_string(world_size),
               "--rendezvous", "127.0.0.1:" + std::to_string(rendezvous),
               "--listen",     "127.0.0.1:" + std::to_string(port)};
  spec.env["FAKE_RUNTIME"] = orders;
  if (rank == 0) spec.ports = {port};
  spec.stop_grace = 5s;
  return spec;
}

bool gone(const ProcessId& process) {
  return wait_until_gone(process, 10s);
}

}  // namespace

TEST_CASE("a rank runs under its supervisor until it is stopped, and then nothing is left", "[supervisor]") {
  TestNode node;
  const RankSpec spec = fake_rank("");
  node.start(spec);
  node.wait_for_log("rank 0 of 1");
  const RankStatus status = node.observe();
  CHECK(status.supervised);
  CHECK(status.alive);
  CHECK(status.state.phase == RankPhase::starting);
  CHECK(port_owner(spec.ports[0])->pid == status.state.process.pid);

  const json result = node.stop("job");
  CHECK(result.at("removed") == true);
  CHECK(result.at("processes_left").empty());
  CHECK(result.at("ports_left").empty());
  CHECK_FALSE(is_alive(status.state.process));
  CHECK_FALSE(is_alive(status.state.supervisor));
  CHECK_FALSE(port_owner(spec.ports[0]));
  CHECK(std::filesystem::is_empty(node.state.path()));
}

TEST_CASE("arguments and environment reach a rank byte by byte", "[supervisor]") {
  TestNode node;
  RankSpec spec = fake_rank("");
  spec.ports.clear();
  spec.argv = {"/bin/sh", "-c", "printf '%s|' \"$@\" \"$WEIRD\"; echo", "sh", "a b", "$(false)", "", "'\"\\", "*"};
  spec.env["WEIRD"] = "x\ny; `z`";
  node.start(spec);
  node.wait_for(RankPhase::failed);
  const auto lines = last_lines(rank_log_path(log_folder(node.state.path(), "job"), 0).string(), 10);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0] == "a b|$(false)||'\"\\|*|x");
  CHECK(lines[1] == "y; `z`|");
}

TEST_CASE("the end of a rank is recorded with its code and last words", "[supervisor]") {
  TestNode node;
  node.start(fake_rank("exit_after_ms=1;exit_code=3"));
  const RankStatus status = node.wait_for(RankPhase::failed);
  REQUIRE(status.state.last_ending);
  CHECK(status.state.last_ending->exit_code == 3);
  CHECK(status.failed());
  CHECK(status.summary() == "failed: exit code 3");
  REQUIRE_FALSE(status.state.last_log_lines.empty());
  CHECK(status.state.last_log_lines.back() == "error: this rank was told to fail");
  CHECK(gone(status.state.supervisor));
}

TEST_CASE("a crash is told from an exit", "[supervisor]") {
  TestNode node;
  node.start(fake_rank("crash_after_ms=1"));
  const RankStatus status = node.wait_for(RankPhase::failed);
  CHECK(status.state.last_ending->signal == SIGABRT);
  CHECK(status.state.reason == "killed by SIGABRT");
}

TEST_CASE("a program that does not exist fails the start with its name", "[supervisor]") {
  TestNode node;
  RankSpec spec = fake_rank("");
  spec.argv[0] = "/nowhere/engine";
  CHECK_THROWS_WITH(node.start(spec), ContainsSubstring("`/nowhere/engine` is not on this machine"));
  spec.argv[0] = "no-such-engine";
  CHECK_THROWS_WITH(node.start(spec), ContainsSubstring("`no-such-engine` is not on this machine"));
}

TEST_CASE("a rank that ignores SIGTERM is killed after its grace time", "[supervisor]") {
  TestNode node;
  RankSpec spec = fake_rank("ignore_sigterm=1");
  spec.stop_grace = 200ms;
  node.start(spec);
  node.wait_for_log("rank 0 of 1");
  const ProcessId process = node.observe().state.process;
  const json result = node.stop("job");
  CHECK(result.at("ranks")[0].at("summary") == "stopped: it was asked to stop; it had to be killed");
  CHECK_FALSE(is_alive(process));
}

TEST_CASE("processes that left the rank's session end with it", "[supervisor]") {
  TestNode node;
  node.start(fake_rank("leave_child=1"));
  node.wait_for_log("rank 0 of 1");
  const std::string token = read_rank_spec(node.folder(), 0).token;
  std::vector<ProcessId> processes;
  for (int i = 0; i < 1000 && processes.size() < 2; ++i) {
    processes = processes_with_environment(kTokenVariable, token);
    std::this_thread::sleep_for(10ms);
  }
  REQUIRE(processes.size() >= 2);
  node.stop("job");
  for (const ProcessId& process : processes) CHECK_FALSE(is_alive(process));
}

TEST_CASE("a killed supervisor takes its rank along and is reported as lost", "[supervisor]") {
  TestNode node;
  node.start(fake_rank("leave_child=1"));
  node.wait_for_log("rank 0 of 1");
  const RankStatus before = node.observe();
  const std::string token = read_rank_spec(node.folder(), 0).token;
  REQUIRE(send_signal(before.state.supervisor, SIGKILL));
  CHECK(gone(before.state.supervisor));
  CHECK(gone(before.state.process));
  CHECK(node.observe().failed());
  CHECK(node.observe().summary() == "lost: its supervisor was killed, and the rank with it");
  CHECK(node.stop("job").at("removed") == true);
  CHECK(processes_with_environment(kTokenVariable, token).empty());
}

TEST_CASE("a rank that is not ready yet ends when its helper goes away", "[supervisor]") {
  TestNode node;
  node.start(fake_rank(""));
  const RankStatus before = node.observe();
  node.client.reset();
  const RankStatus after = node.wait_for(RankPhase::failed);
  CHECK_THAT(after.state.reason, ContainsSubstring("went away before it was ready"));
  CHECK(gone(before.state.process));
}

TEST_CASE("a kept rank outlives the helper that started it", "[supervisor]") {
  TestNode node;
  node.start(fake_rank(""));
  node.call("keep", {{"job", "job"}});
  CHECK(node.observe().state.phase == RankPhase::running);
  node.client.reset();
  std::this_thread::sleep_for(600ms);  // three looks of the supervisor at its lease
  CHECK(node.observe().alive);
}

TEST_CASE("a kept rank is restarted within its budget, and then stays down", "[supervisor]") {
  TestNode node;
  RankSpec spec = fake_rank("");
  spec.ports.clear();
  spec.argv = {"/bin/sleep", "600"};
  spec.restart_budget = 2;
  spec.restart_delay = 10ms;
  node.start(spec);
  node.call("keep", {{"job", "job"}});
  for (int restarts = 1; restarts <= 2; ++restarts) {
    const ProcessId process = node.observe().state.process;
    REQUIRE(send_signal(process, SIGKILL));
    RankStatus status;
    do {
      std::this_thread::sleep_for(5ms);
      status = node.observe();
    } while (status.state.restarts < restarts || status.state.phase != RankPhase::running);
    CHECK(status.state.last_ending->signal == SIGKILL);
    CHECK(status.state.process != process);
  }
  REQUIRE(send_signal(node.observe().state.process, SIGKILL));
  CHECK(node.wait_for(RankPhase::failed).state.reason == "killed by SIGKILL");
}

TEST_CASE("a rank that refuses its flags is not restarted", "[supervisor]") {
  TestNode node;
  RankSpec spec = fake_rank("exit_after_ms=500;exit_code=2");
  spec.restart_budget = 5;
  node.start(spec);
  node.call("keep", {{"job", "job"}});
  CHECK(node.wait_for(RankPhase::failed).state.restarts == 0);
}

TEST_CASE("a rank is stopped before the node runs out of memory", "[supervisor]") {
  TestNode node;
  std::ofstream(node.state / "meminfo") << "MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable:   500 kB\n";
  RankSpec spec = fake_rank("");
  spec.memory_floor_bytes = 400 * 1024;
  spec.proc_root = node.state.path().string();
  node.start(spec);
  node.wait_for_log("rank 0 of 1");
  CHECK_FALSE(node.observe().failed());
  std::ofstream(node.state / "meminfo") << "MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable:   300 kB\n";
  const RankStatus status = node.wait_for(RankPhase::failed);
  CHECK_THAT(status.state.reason, ContainsSubstring("300.0 KiB of memory left, the recipe keeps 400.0 KiB free"));
}

TEST_CASE("a second start of a running rank is refused, and so is a taken port", "[supervisor]") {
  TestNode node;
  RankSpec spec = fake_rank("");
  node.start(spec);
  node.wait_for_log("rank 0 of 1");
  CHECK_THROWS_WITH(node.start(spec), ContainsSubstring("rank 0 of `job` is still there"));
  RankSpec other = spec;
  other.job = "other";
  CHECK_THROWS_WITH(node.start(other), ContainsSubstring("is in use by pid"));
}

TEST_CASE("a record of a reused pid or of an earlier boot names no living rank", "[supervisor]") {
  const TemporaryFolder folder;
  RankState state;
  state.phase = RankPhase::running;
  state.boot_id = boot_id();
  state.supervisor = *find_process(getpid());
  state.process = *find_process(getpid());
  write_rank_state(folder.path(), state);
  CHECK(observe_rank(folder.path(), 0).alive);

  state.supervisor.start_ticks += 1;
  state.process.start_ticks += 1;
  write_rank_state(folder.path(), state);
  CHECK_FALSE(observe_rank(folder.path(), 0).supervised);
  CHECK_FALSE(observe_rank(folder.path(), 0).alive);
  CHECK_FALSE(send_signal(state.process, SIGKILL));

  state.supervisor = state.process = *find_process(getpid());
  state.boot_id = "another boot";
  write_rank_state(folder.path(), state);
  CHECK_FALSE(observe_rank(folder.path(), 0).alive);
  CHECK(observe_rank(folder.path(), 0).summary() == "lost: this machine restarted while it ran");
}

TEST_CASE("a damaged state file is an error that says how to get rid of it", "[supervisor]") {
  const TemporaryFolder folder;
  std::ofstream(folder / "rank-0.state.json") << "{\"rank\": 0, ";
  CHECK_THROWS_WITH(observe_rank(folder.path(), 0), ContainsSubstring("damaged"));
  std::ofstream(folder / "rank-0.state.json") << "{\"rank\": \"zero\"}";
  CHECK_THROWS_WITH(observe_rank(folder.path(), 0), ContainsSubstring("not as expected"));
}

TEST_CASE("a job's name cannot lead out of the state folder", "[supervisor]") {
  for (const std::string name : {"", "..", "../x", "a/b", ".hidden", "a b", "a\n"})
    CHECK_THROWS_AS(job_folder("/state", name), Error);
  CHECK(job_folder("/state", "ling-3.1_a+b") == "/state/jobs/ling-3.1_a+b");
}

TEST_CASE("watching a job tells of the first rank that fails", "[supervisor]") {
  TestNode node;
  const int rendezvous = free_port();
  node.start(fake_rank("", 0, 2, rendezvous));
  node.start(fake_rank("exit_after_ms=100;exit_code=5", 1, 2, rendezvous));
  const json result = node.call("watch", {{"job", "job"}});
  bool any_failed = false;
  for (const json& rank : result.at("ranks")) any_failed = any_failed || rank.at("failed") == true;
  CHECK(any_failed);
  CHECK(node.wait_for(RankPhase::failed, 0).state.reason == "exit code 6 (another rank went away)");
  CHECK(node.wait_for(RankPhase::failed, 1).state.reason == "exit code 5");
}

TEST_CASE("logs come from all ranks, and follow until cancelled", "[supervisor]") {
  TestNode node;
  node.start(fake_rank("print_kib=3"));
  node.wait_for_log("rank 0 of 1");
  std::vector<std::string> lines;
  node.client->call("logs", {{"job", "job"}, {"lines", 2}, {"state_folder", node.state.path().string()}},
                    [&](const json& event) { lines.push_back(event.at("line").get<std::string>()); });
  REQUIRE(lines.size() == 2);
  CHECK(lines[0] == std::string(1023, 'x'));
  CHECK(lines[1] == "fake runtime: rank 0 of 1");

  std::stop_source stop;
  int seen = 0;
  CHECK_NOTHROW(node.client->call(
      "logs", {{"job", "job"}, {"follow", true}, {"state_folder", node.state.path().string()}},
      [&](const json&) {
        ++seen;
        stop.request_stop();
      },
      stop.get_token()));
  CHECK(seen >= 1);
  CHECK_THROWS_WITH(node.call("logs", {{"job", "other"}}), ContainsSubstring("no logs of this job"));
}
