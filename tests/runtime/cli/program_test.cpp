#include <sys/wait.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/catch.h"
#include "tests/orchestrator/temporary_folder.h"
#include "tests/text_files.h"

namespace tandem {
namespace {

const std::string kPack = std::string(TANDEM_SOURCE_DIR) + "/examples/packs/ling-tiny-exl3-3.12bpw";

struct Output {
  int exit_code = 0;
  std::string text;  ///< stdout and stderr
};

Output run(const std::string& arguments) {
  const std::string command = std::string(TANDEM_BINARY_DIR) + "/bin/tandem-runtime " + arguments + " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe);
  Output output;
  char buffer[4096];
  for (size_t count; (count = fread(buffer, 1, sizeof buffer, pipe)) > 0;) output.text.append(buffer, count);
  output.exit_code = WEXITSTATUS(pclose(pipe));
  return output;
}

TEST_CASE("version says what the build is and which options it accepts", "[program]") {
  const Output output = run("version --json");
  CHECK(output.exit_code == 0);
  const nlohmann::json json = nlohmann::json::parse(output.text);
  CHECK(output.text.find("{\n  \"schema_version\": 1,") == 0);
  CHECK(json.at("schema_version") == 1);
  CHECK(json.at("families") == nlohmann::json({"BailingMoeV3ForCausalLM"}));
  CHECK(json.at("devices") == nlohmann::json({"cpu"}));
  CHECK(json.at("codebooks") == nlohmann::json({"3inst", "mcg", "mul1"}));
  CHECK_FALSE(json.at("cpu_targets").empty());
  const auto& options = json.at("options").at("score");
  CHECK(std::find(options.begin(), options.end(), "--rendezvous") != options.end());
  CHECK(run("version").text.find("tandem-runtime " + json.at("version").get<std::string>()) == 0);
}

TEST_CASE("what a command cannot do ends it with an error of three parts and its exit code", "[program]") {
  test::TemporaryFolder folder;
  test::write_text(folder / "in.jsonl", "{\"tokens\": [1, 2, 3]}\n");
  const std::string files = " --tokens " + (folder / "in.jsonl").string() + " --out " + (folder / "out").string();

  Output output = run("score --device cuda:0 --pack " + kPack + files);
  CHECK(output.exit_code == 2);
  CHECK(output.text ==
        "error: this build cannot run on device cuda:0, only on cpu\nwhere: --device\nfix:   use --device cpu\n");

  output = run("score --pack /nowhere" + files);
  CHECK(output.exit_code == 3);
  CHECK(output.text.find("error: ") == 0);

  output = run("score --pack " + kPack + files + " --world-size 2");
  CHECK(output.exit_code == 2);
  CHECK(output.text.find("error: world size 2 without a rendezvous") == 0);

  CHECK(run("score --pack " + kPack).text.find("error: --tokens is missing") == 0);
  CHECK(run("score --pack " + kPack + files + " --rank 1").exit_code == 2);
  CHECK(run("score --pak x").exit_code == 2);
  CHECK(run("").exit_code == 2);
  CHECK(run("--help").exit_code == 0);
  CHECK_FALSE(std::filesystem::exists(folder / "out"));
}

TEST_CASE("score prints what it did and writes its file", "[program]") {
  test::TemporaryFolder folder;
  test::write_text(folder / "in.jsonl", "{\"tokens\": [2019, 50, 299]}\n{\"tokens\": [1]}\n");
  const Output output = run("--quiet score --threads 1 --pack " + kPack + " --tokens " +
                            (folder / "in.jsonl").string() + " --out " + (folder / "out").string());
  CHECK(output.exit_code == 0);
  CHECK(output.text.find("2 sequences, 2 tokens predicted, mean negative log-likelihood ") == 0);
  CHECK(std::filesystem::exists(folder / "out"));
}

TEST_CASE("bench prints speeds and memory", "[program]") {
  const Output output = run("--quiet bench --json --threads 1 --prompt 8 --generate 4 --repeat 1 --pack " + kPack);
  CHECK(output.exit_code == 0);
  const nlohmann::json json = nlohmann::json::parse(output.text);
  CHECK(json.at("decode_tokens_per_second") > 0);
  CHECK(json.at("prefill_tokens_per_second") > 0);
  CHECK(json.at("machine_read_bytes_per_second") > 0);
  CHECK(json.at("memory").at("weights_mapped") > 10'000'000);
}

}  // namespace
}  // namespace tandem
