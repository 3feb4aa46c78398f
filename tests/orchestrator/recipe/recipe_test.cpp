#include "orchestrator/recipe/recipe.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "orchestrator/recipe/commands.h"
#include "orchestrator/recipe/load.h"
#include "tests/catch.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

/// "" when `text` has all of the parts, else what is missing from what.
std::string absent(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    if (text.find(part) == std::string::npos) return "`" + part + "` is not in: " + text;
  return "";
}

/// A folder that goes away with the test.
class Folder {
 public:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "tandem-recipe-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~Folder() { fs::remove_all(path_); }

  fs::path write(const std::string& name, const std::string& text) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << text;
    return path_ / name;
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

const std::string kMinimal =
    "schema: tandem.recipe/v1\n"
    "name: tiny\n"
    "model: {name: m, family: bailing_hybrid}\n"
    "pack: {repo: org/name}\n"
    "engine: {context: 4k}\n";

std::string origin(const LoadedRecipe& loaded, const std::string& path) {
  for (const EffectiveValue& value : loaded.values)
    if (value.path == path) return value.value + " < " + value.origin;
  return "not there";
}

std::string problem(const LoadOptions& options) {
  const std::vector<Error> problems = find_problems(options);
  return problems.empty() ? "" : problems.front().report();
}

TEST_CASE("five lines are a whole recipe; the rest has defaults", "[recipe]") {
  const Folder folder;
  const LoadedRecipe loaded = load_recipe({.recipe = folder.write("tiny.yaml", kMinimal), .cluster = {}, .sets = {}});
  const Recipe& recipe = loaded.recipe;
  CHECK(recipe.name == "tiny");
  CHECK(recipe.pack.repo == "org/name");
  CHECK(recipe.pack.revision == "main");
  CHECK(recipe.engine.context_tokens == 4096);
  CHECK(recipe.engine.kv_cache == "bf16");
  CHECK(recipe.tensor_parallel == 1);
  CHECK(recipe.memory_floor_bytes == int64_t{1} << 30);
  CHECK(recipe.health.load_timeout == std::chrono::minutes(20));
  CHECK(recipe.engine.peer_timeout == std::chrono::seconds(10));
  CHECK(loaded.cluster.is_default);
  REQUIRE(loaded.cluster.nodes.size() == 1);
  CHECK(loaded.cluster.nodes[0].address == "127.0.0.1");
  CHECK(loaded.cluster.listen_address == "127.0.0.1");
  REQUIRE(loaded.notes.size() == 1);
  CHECK(absent(loaded.notes[0].text, {"not pinned"}) == "");
}

TEST_CASE("a byte order mark and Windows line ends are accepted with a note", "[recipe]") {
  const Folder folder;
  std::string text = "\xEF\xBB\xBF";
  for (char c : kMinimal) text += c == '\n' ? std::string("\r\n") : std::string(1, c);
  const LoadedRecipe loaded = load_recipe({.recipe = folder.write("tiny.yaml", text), .cluster = {}, .sets = {}});
  CHECK(loaded.recipe.model.name == "m");
  REQUIRE(loaded.notes.size() == 3);
  CHECK(absent(loaded.notes[0].text, {"byte order mark"}) == "");
  CHECK(absent(loaded.notes[1].text, {"CRLF"}) == "");
}

TEST_CASE("extends merges maps at every depth and replaces lists", "[recipe]") {
  const Folder folder;
  folder.write("base/base.yaml",
               "schema: tandem.recipe/v1\nname: base\nmodel: {name: m, family: bailing_hybrid}\npack: {repo: a/b}\n"
               "engine: {context: 4k, mtp: {depth: 3, adaptive: true}}\nnotes: [one, two]\n");
  const fs::path recipe = folder.write("x.yaml",
                                       "schema: tandem.recipe/v1\nname: x\nextends: ./base/base.yaml\n"
                                       "engine: {mtp: {depth: 1}}\nnotes: [three]\npack: {path: ./p}\n");
  const LoadedRecipe loaded = load_recipe({.recipe = recipe, .cluster = {}, .sets = {}});
  CHECK(loaded.recipe.engine.mtp_depth == 1);
  CHECK(loaded.recipe.engine.mtp_adaptive);
  CHECK(loaded.recipe.engine.context_tokens == 4096);
  CHECK(loaded.recipe.notes == std::vector<std::string>{"three"});
  CHECK(loaded.recipe.pack.repo == "");  // path took its place: only one of the two may be given
  CHECK(loaded.recipe.pack.path == (folder.path() / "p").string());
  CHECK(origin(loaded, "engine.mtp.adaptive") == "true < " + (folder.path() / "base/base.yaml").string() + ":5:49");
}

TEST_CASE("a base that a link leads out of the folder is refused", "[recipe]") {
  const Folder folder, elsewhere;
  fs::create_symlink(elsewhere.write("base.yaml", kMinimal), folder.path() / "base.yaml");
  const fs::path recipe = folder.write("x.yaml", kMinimal + "extends: ./base.yaml\n");
  CHECK(absent(problem({.recipe = recipe, .cluster = {}, .sets = {}}), {"out of the recipe's folder"}) == "");
}

TEST_CASE("the cluster file goes over the recipe, and --set over both; show says where each value comes from",
          "[recipe]") {
  const Folder folder;
  const fs::path recipe = folder.write("tiny.yaml", kMinimal + "memory: {floor: 2GiB}\n");
  const fs::path cluster = folder.write("cluster.yaml",
                                        "schema: tandem.cluster/v1\n"
                                        "nodes:\n"
                                        "  - {name: a, address: 10.0.0.1, link_address: 192.168.1.1, user: me}\n"
                                        "  - {name: b, address: 10.0.0.2, devices: [\"cuda:1\"]}\n"
                                        "ports: {http: 9000}\n"
                                        "overrides: {engine: {context: 8k}, memory: {floor: 3GiB}}\n");
  const LoadedRecipe loaded = load_recipe(
      {.recipe = recipe, .cluster = cluster, .sets = {"memory.floor=4GiB", "cluster.ports.rendezvous=9001"}});
  CHECK(loaded.recipe.engine.context_tokens == 8192);
  CHECK(loaded.recipe.memory_floor_bytes == int64_t{4} << 30);
  CHECK(loaded.cluster.http_port == 9000);
  CHECK(loaded.cluster.rendezvous_port == 9001);
  REQUIRE(loaded.cluster.nodes.size() == 2);
  CHECK(loaded.cluster.nodes[0].link_address == "192.168.1.1");
  CHECK(loaded.cluster.nodes[1].link_address == "10.0.0.2");
  CHECK(loaded.cluster.nodes[1].devices == std::vector<std::string>{"cuda:1"});
  CHECK_FALSE(loaded.cluster.is_default);
  CHECK(origin(loaded, "engine.context") == "8k < " + cluster.string() + ":6:31");
  CHECK(origin(loaded, "memory.floor") == "4GiB < --set memory.floor");
  CHECK(origin(loaded, "engine.slots") == "1 < default");
  CHECK(origin(loaded, "pack.repo") == "org/name < " + recipe.string() + ":4:14");
  CHECK(origin(loaded, "cluster.ports.rendezvous") == "9001 < --set cluster.ports.rendezvous");
}

TEST_CASE("--set takes its types from the table, words as they are and lists in brackets", "[recipe]") {
  const Folder folder;
  const fs::path recipe =
      folder.write("x.yaml", kMinimal.substr(0, kMinimal.find("engine")) +
                                 "engine: {kind: command, program: vllm, context: 4k, argv: [serve]}\n");
  const LoadedRecipe loaded =
      load_recipe({.recipe = recipe,
                   .cluster = {},
                   .sets = {"model.name=no", "engine.argv=[serve, --port, '{port}']", "engine.env.NCCL_DEBUG=WARN",
                            "engine.env.LD_LIBRARY_PATH=/opt/x", "cluster.programs.vllm=/usr/bin/vllm"}});
  CHECK(loaded.recipe.model.name == "no");
  CHECK(loaded.recipe.engine.ranks[0].argv == std::vector<std::string>{"serve", "--port", "{port}"});
  CHECK(loaded.recipe.engine.ranks[0].env.at("NCCL_DEBUG") == "WARN");
  // What a recipe may not set, whoever runs it may.
  CHECK(loaded.recipe.engine.ranks[0].env.at("LD_LIBRARY_PATH") == "/opt/x");
  CHECK(loaded.cluster.programs.at("vllm") == "/usr/bin/vllm");
}

TEST_CASE("an override that cannot be is refused by its name", "[recipe]") {
  const Folder folder;
  const fs::path recipe = folder.write("x.yaml", kMinimal);
  const auto report = [&](const std::string& set) {
    try {
      return problem({.recipe = recipe, .cluster = {}, .sets = {set}});
    } catch (const Error& error) {
      return error.report();
    }
  };
  CHECK(report("engine.contxt=1k") ==
        "error: there is no key `engine.contxt`\nwhere: --set engine.contxt\nfix:   did you mean `context`?\n");
  CHECK(report("engine.context=lots") ==
        "error: expected a number of tokens such as 262144 or 256k, found `lots`\n"
        "where: --set engine.context (engine.context)\nfix:   write a number of tokens such as 262144 or 256k\n");
  CHECK(report("memory.floor=2") ==
        "error: `2` has no unit\nwhere: --set memory.floor (memory.floor)\n"
        "fix:   write the unit, for example 2GiB\n");
  CHECK(absent(report("engine.loop_guard=yes"), {"fix:   write true"}) == "");
  CHECK(absent(report("name=other"), {"says what the recipe is"}) == "");
  CHECK(absent(report("engine.context"), {"--set needs KEY=VALUE"}) == "");
  CHECK(absent(report("health.probes[0].prompt=x"), {"set the whole list"}) == "");
  CHECK(absent(report("engine.mtp={depth: 1"), {"close the bracket"}) == "");
  CHECK(absent(report("model.name=-x"), {"expected a name"}) == "");
}

TEST_CASE("a cluster file is as strict as a recipe", "[recipe]") {
  const Folder folder;
  const fs::path recipe = folder.write("x.yaml", kMinimal);
  const auto report = [&](const std::string& text) {
    return problem(
        {.recipe = recipe, .cluster = folder.write("c.yaml", "schema: tandem.cluster/v1\n" + text), .sets = {}});
  };
  CHECK(report("nodes: [{name: a}]\n") == "");
  CHECK(absent(report("nodes: []\n"), {"found 0 items, expected 1 to 64"}) == "");
  CHECK(absent(report("nodes: [{name: a}, {name: a}]\n"), {"two machines are called `a`"}) == "");
  CHECK(absent(report("nodes: [{name: a, adress: x}]\n"), {"c.yaml:2:19", "did you mean `address`?"}) == "");
  CHECK(absent(report("nodes: [{name: a, address: \"-oProxyCommand=x\"}]\n"), {"expected a host name"}) == "");
  CHECK(absent(report("nodes: [{name: a, folders: {hub: ~/x}}]\n"), {"`~` is not expanded"}) == "");
  CHECK(absent(report("nodes: [{name: a, port: 70000}]\n"), {"outside 1 to 65535"}) == "");
  CHECK(absent(report("nodes: [{name: a}]\nports: {http: 80, rendezvous: 80}\n"), {"both 80"}) == "");
  CHECK(absent(report("nodes: [{name: a}]\nprograms: {vllm: bin/vllm}\n"), {"expected an absolute path"}) == "");
  CHECK(absent(report("nodes: [{name: a}]\noverrides: {license: MIT}\n"), {"(overrides.license)"}) == "");
  CHECK(absent(report("nodes: [{name: a}]\noverrides: {engine: {contxt: 1k}}\n"), {"(overrides.engine.contxt)"}) == "");
}

TEST_CASE("files that are none, too large, or never end are refused", "[recipe]") {
  const Folder folder;
  const auto report = [](const fs::path& path) { return problem({.recipe = path, .cluster = {}, .sets = {}}); };
  CHECK(report(folder.path() / "nothing.yaml") != "");
  CHECK(report(folder.path()) != "");
  CHECK(report("/dev/zero") != "");
  CHECK(report(folder.write("big.yaml", kMinimal + "# " + std::string(1 << 20, 'x'))) != "");
}

TEST_CASE("validate prints every problem, or that there is none", "[recipe]") {
  const Folder folder;
  const fs::path good = folder.write("good.yaml", kMinimal);
  const fs::path bad = folder.write("bad.yaml", kMinimal + "licence: MIT\nmemory: {floor: 2}\n");
  std::ostringstream out, errors;
  CHECK(validate_command({.recipe = good, .cluster = {}, .sets = {}}, false, out, errors) == 0);
  CHECK(out.str() == good.string() + ": sound\n");
  CHECK(validate_command({.recipe = bad, .cluster = {}, .sets = {}}, false, out, errors) == 2);
  CHECK(absent(errors.str(), {"`license`?", "has no unit"}) == "");
  CHECK(absent(out.str(), {"bad.yaml: 2 problems"}) == "");
  std::ostringstream json;
  CHECK(validate_command({.recipe = bad, .cluster = {}, .sets = {}}, true, json, errors) == 2);
  CHECK(absent(json.str(), {"\"schema_version\": 1", "\"valid\": false"}) == "");
}

TEST_CASE("show prints one value a line, with its origin when asked", "[recipe]") {
  const Folder folder;
  const fs::path recipe = folder.write("tiny.yaml", kMinimal);
  std::ostringstream out;
  show_command({.load = {.recipe = recipe, .cluster = {}, .sets = {"engine.slots=2"}}, .origin = true, .json = false},
               out);
  CHECK(absent(out.str(), {"engine.context", recipe.string() + ":5:19"}) == "");
  CHECK(absent(out.str(), {"--set engine.slots"}) == "");
  CHECK(absent(out.str(), {"default"}) == "");
}

TEST_CASE("a recipe is found by name, and a wrong name brings the nearest one", "[recipe]") {
  const Folder folder;
  const fs::path recipe = folder.write("ling-tiny.yaml", kMinimal);
  CHECK(find_recipe("ling-tiny", {folder.path()}) == recipe);
  CHECK(find_recipe(recipe.string(), {}) == recipe);
  try {
    find_recipe("ling-tniy", {folder.path()});
    FAIL("found");
  } catch (const Error& error) {
    CHECK(error.fix() == "did you mean `ling-tiny`?");
  }
}

}  // namespace
}  // namespace tandem
