// `tandem up`, `status` and `down` as people run them, against the fake runtime.
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/catch.h"
#include "tests/orchestrator/sandbox.h"

using namespace tandem;
using namespace tandem::test;
using nlohmann::json;
using namespace std::chrono_literals;

namespace {

json status(Sandbox& sandbox) {
  return json::parse(sandbox.run({"status", "--json"}).out).at("jobs");
}

int rank_pid(Sandbox& sandbox, size_t rank) {
  return status(sandbox).at(0).at("ranks").at(rank).at("process").at("pid").get<int>();
}

void check_nothing_left(const Sandbox& sandbox) {
  CHECK(sandbox.state_files().empty());
  CHECK(sandbox.processes().empty());
  CHECK_FALSE(node::port_owner(sandbox.http_port));
  CHECK_FALSE(node::port_owner(sandbox.rendezvous_port));
}

}  // namespace

TEST_CASE("up brings a job from recipe to a tested answer, and down leaves nothing", "[up]") {
  Sandbox sandbox;
  const std::string recipe = sandbox.write_recipe();
  const Outcome up = sandbox.run(sandbox.up_arguments(recipe));
  INFO(up.err);
  REQUIRE(up.exit_code == 0);
  for (const char* stage :
       {"[1/7] recipe", "[2/7] plan", "[3/7] fetch", "[4/7] split", "[5/7] link", "[6/7] launch", "[7/7] health"})
    CHECK_THAT(up.err, ContainsSubstring(stage));
  CHECK_THAT(up.out, ContainsSubstring("http://127.0.0.1:" + std::to_string(sandbox.http_port) + "/v1"));
  CHECK_THAT(up.out, ContainsSubstring("answered  42"));
  CHECK_THAT(up.out, ContainsSubstring("tandem down tiny"));

  CHECK(status(sandbox).at(0).at("state") == "running");
  CHECK(sandbox.run({"status", "tiny"}).exit_code == 0);

  const Outcome down = sandbox.run({"down", recipe});
  CHECK(down.exit_code == 0);
  CHECK(down.out == "tiny: stopped, nothing is left\n");
  check_nothing_left(sandbox);
  CHECK(sandbox.run({"status"}).out == "no jobs\n");
  CHECK(sandbox.run({"status", "tiny"}).exit_code == 5);
}

TEST_CASE("a second up of a running job changes nothing and says so", "[up]") {
  Sandbox sandbox;
  const std::string recipe = sandbox.write_recipe();
  REQUIRE(sandbox.run(sandbox.up_arguments(recipe)).exit_code == 0);
  const int before = rank_pid(sandbox, 0);
  std::vector<std::string> again = sandbox.up_arguments(recipe);
  again.push_back("--json");
  const Outcome second = sandbox.run(again);
  CHECK(second.exit_code == 0);
  const json document = json::parse(second.out);
  CHECK(document.at("already_up") == true);
  CHECK(document.at("endpoint") == "http://127.0.0.1:" + std::to_string(sandbox.http_port) + "/v1");
  CHECK(rank_pid(sandbox, 0) == before);

  again.insert(again.end(), {"--set", "engine.context=256"});
  const Outcome other = sandbox.run(again);
  CHECK(other.exit_code != 0);
  CHECK_THAT(other.out, ContainsSubstring("tandem down tiny"));
  CHECK(rank_pid(sandbox, 0) == before);
}

TEST_CASE("a rank that dies while starting ends up at once, with its last words", "[up]") {
  const int rank = GENERATE(0, 1);
  Sandbox sandbox;
  sandbox.environment["FAKE_RUNTIME"] = "load_ms=600000;exit_after_ms=100@" + std::to_string(rank) + ";exit_code=3";
  const Outcome up = sandbox.run(sandbox.up_arguments(sandbox.write_recipe()));
  CHECK(up.exit_code == 5);
  CHECK_THAT(up.err,
             ContainsSubstring("error: rank " + std::to_string(rank) + " failed: exit code 3; its last lines:"));
  CHECK_THAT(up.err, ContainsSubstring("    error: this rank was told to fail"));
  check_nothing_left(sandbox);
  CHECK_THAT(sandbox.run({"logs", "tiny"}).out, ContainsSubstring("| error: this rank was told to fail"));
}

TEST_CASE("an engine that answers nonsense is taken down again", "[up]") {
  const auto [orders, reason] = GENERATE(
      table<std::string, std::string>({{"answer=!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!", "it repeats one character"},
                                       {"answer=43", "does not contain `42`"},
                                       {"finish=error", "finish_reason is `error`"},
                                       {"silent_rank=1", "rank 1 exchanged no bytes"}}));
  Sandbox sandbox;
  sandbox.environment["FAKE_RUNTIME"] = orders;
  const Outcome up = sandbox.run(sandbox.up_arguments(sandbox.write_recipe()));
  CHECK(up.exit_code == 5);
  CHECK_THAT(up.err, ContainsSubstring(reason));
  check_nothing_left(sandbox);
}

TEST_CASE("an engine that never gets ready is given up, stubborn processes included", "[up]") {
  Sandbox sandbox;
  sandbox.environment["FAKE_RUNTIME"] = "hang=1;leave_child=1";
  auto arguments = sandbox.up_arguments(sandbox.write_recipe());
  arguments.insert(arguments.end(), {"--set", "health.load_timeout=1s"});
  const Outcome up = sandbox.run(arguments);
  CHECK(up.exit_code == 5);
  CHECK_THAT(up.err, ContainsSubstring("not ready after 1.0 s; last heard: loading"));
  CHECK_THAT(up.err, ContainsSubstring("rank 1 | fake runtime: rank 1 of 2"));
  check_nothing_left(sandbox);
}

TEST_CASE("Ctrl-C at any stage leaves nothing behind", "[up]") {
  const std::string stage = GENERATE("plan", "split", "link", "launch", "health");
  Sandbox sandbox;
  sandbox.environment["FAKE_RUNTIME"] = "load_ms=600000";
  auto up = sandbox.start(sandbox.up_arguments(sandbox.write_recipe()));
  REQUIRE(up.wait_for_output("] " + stage));
  up.signal(stage == "link" ? SIGTERM : SIGINT);
  const Outcome outcome = up.wait();
  INFO(outcome.err);
  CHECK(outcome.exit_code == 130);
  CHECK_THAT(outcome.err, ContainsSubstring("error: interrupted during "));
  check_nothing_left(sandbox);
}

TEST_CASE("a killed up takes its unready ranks along, and the next up starts clean", "[up]") {
  Sandbox sandbox;
  sandbox.environment["FAKE_RUNTIME"] = "load_ms=600000";
  const std::string recipe = sandbox.write_recipe();
  auto first = sandbox.start(sandbox.up_arguments(recipe));
  REQUIRE(first.wait_for_output("[7/7] health"));
  first.signal(SIGKILL);
  CHECK(first.wait().exit_code == 128 + SIGKILL);
  for (int i = 0; i < 1000 && !sandbox.processes().empty(); ++i) std::this_thread::sleep_for(20ms);
  CHECK(sandbox.processes().empty());
  CHECK(status(sandbox).at(0).at("state") == "failed");

  sandbox.environment["FAKE_RUNTIME"] = "";
  const Outcome second = sandbox.run(sandbox.up_arguments(recipe));
  INFO(second.err);
  CHECK(second.exit_code == 0);
}

TEST_CASE("status shows which rank died how, and up brings the job back", "[up]") {
  Sandbox sandbox;
  const std::string recipe = sandbox.write_recipe();
  REQUIRE(sandbox.run(sandbox.up_arguments(recipe)).exit_code == 0);
  REQUIRE(kill(rank_pid(sandbox, 1), SIGKILL) == 0);
  json job;
  for (int i = 0; i < 500; ++i) {
    job = status(sandbox).at(0);
    if (job.at("ranks").at(0).at("failed") == true && job.at("ranks").at(1).at("failed") == true) break;
    std::this_thread::sleep_for(20ms);
  }
  CHECK(job.at("state") == "failed");
  CHECK_THAT(job.at("reason").get<std::string>(),
             ContainsSubstring("rank 1") && ContainsSubstring("killed by SIGKILL"));
  CHECK(job.at("ranks").at(0).at("last_ending").at("exit_code") == 6);
  CHECK(sandbox.run({"status", "tiny"}).exit_code == 5);

  const Outcome again = sandbox.run(sandbox.up_arguments(recipe));
  INFO(again.err);
  CHECK(again.exit_code == 0);
  CHECK(status(sandbox).at(0).at("state") == "running");
}

TEST_CASE("two ups of one job do not fight", "[up]") {
  Sandbox sandbox;
  sandbox.environment["FAKE_RUNTIME"] = "load_ms=600000";
  const std::string recipe = sandbox.write_recipe();
  auto first = sandbox.start(sandbox.up_arguments(recipe));
  REQUIRE(first.wait_for_output("[7/7] health"));
  const Outcome second = sandbox.run(sandbox.up_arguments(recipe));
  CHECK(second.exit_code == 5);
  CHECK_THAT(second.err, ContainsSubstring("another tandem works on `tiny`: `up`, pid "));
  CHECK(sandbox.run({"down", "tiny"}).exit_code == 5);
  first.signal(SIGINT);
  CHECK(first.wait().exit_code == 130);
  check_nothing_left(sandbox);
}

TEST_CASE("a foreign engine runs by its own command line and is judged by its answers", "[up]") {
  Sandbox sandbox;
  std::ofstream(sandbox.path() / "recipes" / "foreign.yaml")
      << "schema: tandem.recipe/v1\n"
      << "name: foreign\n"
      << "model: {name: tiny, family: other}\n"
      << "pack: {path: pack}\n"
      << "engine:\n"
      << "  kind: command\n"
      << "  context: 512\n"
      << "  program: fake\n"
      << "  argv: [serve, --listen, \"{listen_address}:{port}\", --model-name, their-name]\n"
      << "  ready: {path: /health}\n"
      << "health: {probes: [{prompt: \"What is 12 + 30?\", max_tokens: 8, expect: \"42\"}]}\n";
  auto arguments = sandbox.up_arguments("foreign");
  arguments.insert(arguments.end(), {"--set", "cluster.programs.fake=" + sandbox.environment["TANDEM_RUNTIME"]});
  const Outcome up = sandbox.run(arguments);
  INFO(up.err);
  CHECK(up.exit_code == 0);
  CHECK_THAT(up.out, ContainsSubstring("model     their-name"));
  CHECK(sandbox.run({"down", "foreign"}).exit_code == 0);
  check_nothing_left(sandbox);
}

TEST_CASE("down of several jobs stops them all", "[up]") {
  Sandbox sandbox;
  CHECK(sandbox.run({"down", "--all"}).out == "no jobs\n");
  REQUIRE(sandbox.run(sandbox.up_arguments(sandbox.write_recipe("one", 1))).exit_code == 0);
  const int first_port = std::exchange(sandbox.http_port, free_port());
  REQUIRE(sandbox.run(sandbox.up_arguments(sandbox.write_recipe("two", 1))).exit_code == 0);
  CHECK(status(sandbox).size() == 2);
  const Outcome down = sandbox.run({"down", "--all"});
  CHECK(down.exit_code == 0);
  check_nothing_left(sandbox);
  CHECK_FALSE(node::port_owner(first_port));
}
