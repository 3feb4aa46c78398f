// The program `tandem`: text in, text and exit code out.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/catch.h"
#include "tests/orchestrator/sandbox.h"

using namespace tandem::test;
using nlohmann::json;

TEST_CASE("an error goes to stderr in three parts, or as one JSON object to stdout", "[cli]") {
  Sandbox sandbox;
  const Outcome text = sandbox.run({"upp"});
  CHECK(text.exit_code == 2);
  CHECK(text.out.empty());
  CHECK(text.err == "error: unknown command `upp`\nfix:   did you mean `up`? See tandem --help\n");

  const Outcome object = sandbox.run({"upp", "--json"});
  CHECK(object.exit_code == 2);
  CHECK(object.err.empty());
  const auto document = nlohmann::ordered_json::parse(object.out);
  CHECK(document.begin().key() == "schema_version");
  CHECK(document.at("error").at("kind") == "usage");
  CHECK(document.at("exit_code") == 2);
}

TEST_CASE("a recipe that does not exist is asked for by its nearest name", "[cli]") {
  Sandbox sandbox;
  sandbox.write_recipe("tiny");
  const Outcome outcome = sandbox.run({"up", "tinny"});
  CHECK(outcome.exit_code == 2);
  CHECK_THAT(outcome.err, ContainsSubstring("tiny"));
  CHECK(sandbox.state_files().empty());
}

TEST_CASE("version says what it is", "[cli]") {
  Sandbox sandbox;
  CHECK_THAT(sandbox.run({"version"}).out, ContainsSubstring("tandem 0."));
  CHECK(json::parse(sandbox.run({"version", "--json"}).out).at("runtime") == sandbox.environment.at("TANDEM_RUNTIME"));
}

TEST_CASE("plan says with its exit code whether there is something to do", "[cli]") {
  Sandbox sandbox;
  const std::string recipe = sandbox.write_recipe();
  auto plan = sandbox.up_arguments(recipe);
  plan.front() = "plan";
  const Outcome before = sandbox.run(plan);
  INFO(before.err);
  CHECK(before.exit_code == 10);
  CHECK_THAT(before.out, ContainsSubstring("write 2 rank folders"));
  REQUIRE(sandbox.run(sandbox.up_arguments(recipe)).exit_code == 0);
  const Outcome after = sandbox.run(plan);
  CHECK(after.exit_code == 0);
  CHECK_THAT(after.out, ContainsSubstring("Nothing to do"));
}

TEST_CASE("split writes rank folders, and cache lists and prunes them", "[cli]") {
  Sandbox sandbox;
  const Outcome split = sandbox.run({"split", sandbox.write_recipe()});
  INFO(split.err);
  REQUIRE(split.exit_code == 0);
  std::istringstream lines(split.out);
  int folders = 0;
  for (std::string line; std::getline(lines, line); ++folders) CHECK(std::filesystem::is_directory(line));
  CHECK(folders == 2);

  std::filesystem::create_directories(sandbox.path() / "cache/ranks/old-pack/rank0.partial");
  const json cache = json::parse(sandbox.run({"cache", "--json"}).out);
  CHECK(cache.at("rank_folders").size() == 3);
  CHECK_THAT(sandbox.run({"cache", "prune"}).out, ContainsSubstring("would be removed"));
  CHECK(sandbox.run({"cache", "prune", "--yes"}).exit_code == 0);
  CHECK(json::parse(sandbox.run({"cache", "--json"}).out).at("rank_folders").size() == 2);
  CHECK_FALSE(std::filesystem::exists(sandbox.path() / "cache/ranks/old-pack"));
}

TEST_CASE("link measures without starting anything", "[cli]") {
  Sandbox sandbox;
  const Outcome link = sandbox.run({"link", sandbox.write_recipe(), "--json"});
  INFO(link.err);
  REQUIRE(link.exit_code == 0);
  const json report = json::parse(link.out).at("links").at(0);
  CHECK(report.at("transport") == "loopback");
  CHECK(report.at("grade") == "pass");
  CHECK(report.at("forward").at("bytes") > 0);
  CHECK(sandbox.state_files().empty());
}

TEST_CASE("down wants to know what", "[cli]") {
  Sandbox sandbox;
  CHECK(sandbox.run({"down"}).exit_code == 2);
  CHECK(sandbox.run({"down", "x", "--all"}).exit_code == 2);
}

TEST_CASE("a node tells its facts", "[cli]") {
  Sandbox sandbox;
  const json facts = json::parse(sandbox.run({"node", "probe"}).out);
  CHECK(facts.at("memory_total_bytes") > 0);
  CHECK(facts.at("cores") >= 1);
  CHECK(facts.at("devices") == json::array({"cpu"}));
  CHECK(facts.at("runtime_program") == sandbox.environment.at("TANDEM_RUNTIME"));
}

TEST_CASE("a mirror and a hub cache of one machine feed each other", "[cli]") {
  Sandbox sandbox;
  auto mirror = sandbox.start({"mirror", std::string(TANDEM_SOURCE_DIR) + "/examples/packs", "--port", "0", "--quiet"});
  REQUIRE(mirror.wait_for_output("\"endpoint\""));
  const std::string output = [&] {
    std::ifstream file(sandbox.path() / "output/0.out");
    return std::string(std::istreambuf_iterator<char>(file), {});
  }();
  sandbox.environment["HF_ENDPOINT"] = json::parse(output).at("endpoint");
  const std::string recipe = sandbox.write_recipe();
  std::ofstream(recipe) << "schema: tandem.recipe/v1\nname: tiny\n"
                        << "model: {name: ling-tiny, family: bailing_hybrid}\n"
                        << "pack: {repo: tandem/ling-tiny-exl3-3.12bpw}\n"
                        << "parallel: {tensor: 2}\nengine: {context: 512}\n";
  const Outcome fetch = sandbox.run({"fetch", recipe});
  INFO(fetch.err);
  REQUIRE(fetch.exit_code == 0);
  CHECK_THAT(fetch.err, ContainsSubstring("downloaded"));
  const std::string folder = fetch.out.substr(0, fetch.out.find('\n'));
  CHECK(std::filesystem::exists(std::filesystem::path(folder) / "config.json"));
  CHECK_THAT(sandbox.run({"fetch", recipe}).err, ContainsSubstring("are there"));
  mirror.signal(SIGTERM);
  CHECK(mirror.wait().exit_code == 0);
}
