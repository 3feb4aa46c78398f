#include "orchestrator/cli/arguments.h"

#include "runtime/common/error.h"
#include "tests/catch.h"

using namespace tandem;
using namespace tandem::cli;

namespace {

Arguments parse(const std::vector<std::string>& words) {
  return parse_arguments(words).arguments;
}

/// "what / fix" of the error that the words bring.
std::string complaint(const std::vector<std::string>& words) {
  try {
    parse_arguments(words);
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::usage);
    return std::string(e.what()) + " / " + e.fix();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("global flags may stand before and after the command", "[cli]") {
  for (const auto& words : std::vector<std::vector<std::string>>{
           {"--json", "--set", "a=1", "--cluster", "c.yaml", "up", "tiny", "--set", "b=2"},
           {"up", "--json", "tiny", "--set", "a=1", "--set", "b=2", "--cluster", "c.yaml"}}) {
    const Arguments arguments = parse(words);
    CHECK(arguments.command == "up");
    CHECK(arguments.recipe == "tiny");
    CHECK(arguments.json);
    CHECK(arguments.sets == std::vector<std::string>{"a=1", "b=2"});
    CHECK(arguments.cluster == "c.yaml");
  }
}

TEST_CASE("commands read their own flags", "[cli]") {
  CHECK(parse({"logs", "tiny", "-f", "-n", "7", "--rank", "1"}).follow);
  CHECK(parse({"logs", "tiny", "-n", "7"}).lines == 7);
  CHECK(parse({"show", "tiny", "--origin"}).origin);
  CHECK(parse({"plan", "tiny", "--offline"}).offline);
  CHECK(parse({"down", "--all"}).all);
  CHECK(parse({"status"}).recipe.empty());
  CHECK(parse({"mirror", "packs", "--port", "0"}).port == 0);
  CHECK(parse({"cache"}).subcommand.empty());
  CHECK(parse({"cache", "prune", "--yes"}).subcommand == "prune");
  CHECK(parse({"node", "supervise", "--folder", "/x", "--rank", "3"}).rank == 3);
  CHECK(parse({"version", "--color", "never"}).color == ColorChoice::never);
}

TEST_CASE("a misspelt flag or command finds its neighbour", "[cli]") {
  CHECK(complaint({"upp", "tiny"}) == "unknown command `upp` / did you mean `up`? See tandem --help");
  CHECK(complaint({"statsu"}) == "unknown command `statsu` / did you mean `status`? See tandem --help");
  CHECK(complaint({"up", "tiny", "--jsn"}) == "unknown flag `--jsn` / did you mean `--json`? See tandem up --help");
  CHECK(complaint({"plan", "tiny", "--ofline"}) ==
        "unknown flag `--ofline` / did you mean `--offline`? See tandem plan --help");
  CHECK(complaint({"up", "tiny", "--zzzzzzzz=1"}) == "unknown flag `--zzzzzzzz` / tandem up --help");
  CHECK(complaint({"node", "sevre"}) == "unknown command `sevre` / did you mean `serve`? See tandem node --help");
}

TEST_CASE("what is missing or too much is said", "[cli]") {
  CHECK(complaint({}) == "which command? / tandem --help");
  CHECK(complaint({"node"}) == "which command? / tandem node --help");
  CHECK(complaint({"up"}) == "RECIPE is required / tandem up --help");
  CHECK(complaint({"up", "a", "b"}) == "one argument too many: `b` / tandem up --help");
  CHECK_THAT(complaint({"logs", "a", "-n", "many"}), ContainsSubstring("tandem logs --help"));
  CHECK_THAT(complaint({"logs", "a", "-n", "-1"}), ContainsSubstring("tandem logs --help"));
  CHECK_THAT(complaint({"mirror", "--port", "70000"}), ContainsSubstring("tandem mirror --help"));
  CHECK_THAT(complaint({"up", "a", "--color", "red"}), ContainsSubstring("red"));
  CHECK_THAT(complaint({"\x1b[2J"}), ContainsSubstring("\\x1b[2J"));
}

TEST_CASE("help is an answer, not an error", "[cli]") {
  CHECK_THAT(parse_arguments({"--help"}).help, ContainsSubstring("Exit codes"));
  CHECK_THAT(parse_arguments({"up", "--help"}).help, ContainsSubstring("tandem up"));
}
