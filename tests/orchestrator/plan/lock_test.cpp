#include "orchestrator/plan/lock.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "orchestrator/fetch/fetch.h"
#include "orchestrator/fetch/mirror.h"
#include "orchestrator/plan/commands.h"
#include "orchestrator/plan/pack_facts.h"
#include "runtime/common/error.h"
#include "tests/catch.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "tandem-lock-XXXXXX").string();
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

const std::string kSha(64, 'a');
const std::string kCommit(40, 'b');

Lock example() {
  Lock lock;
  lock.recipe = "tiny";
  lock.repo = "org/name";
  lock.revision = "main";
  lock.commit = kCommit;
  lock.files = {{"config.json", 12, kSha}, {"model.safetensors", 3456, kSha}};
  return lock;
}

std::string parse_error(const std::string& text) {
  try {
    parse_lock(text, "x.lock");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

TEST_CASE("a lock reads back as it was written, one file a line", "[lock]") {
  const std::string text = format_lock(example());
  CHECK(parse_lock(text, "x.lock") == example());
  CHECK(text.find("\n      {\"name\":\"config.json\",\"bytes\":12,\"sha256\":\"") != std::string::npos);
  CHECK(lock_path("recipes/x.yaml") == "recipes/x.lock");
}

TEST_CASE("a lock that was tampered with is refused", "[lock]") {
  const std::string good = format_lock(example());
  CHECK(parse_error("{") == "the lock file is not JSON");
  CHECK(parse_error(replaced(good, "lock/v1", "lock/v2")) == "the lock file is not of version tandem.lock/v1");
  CHECK(parse_error(replaced(good, kCommit, "main")) == "the lock file's `commit` is not 40 hex digits");
  CHECK(parse_error(replaced(good, kSha, "abc")) == "the sha256 of `config.json` is not 64 hex digits");
  CHECK(parse_error(replaced(good, "\"bytes\":12", "\"bytes\":-1")) == "a file of the lock file has no size");
  CHECK(parse_error(replaced(good, "config.json", "../../x")) != "");
  CHECK(parse_error(replaced(good, "config.json", "/etc/x")) != "");
  CHECK(parse_error(replaced(good, "config.json", "model.safetensors")) != "");
  CHECK(parse_error(replaced(good, "\"repo\": \"org/name\",", "")) != "");
}

TEST_CASE("a lock of another pack or revision is refused with both", "[lock]") {
  Recipe recipe;
  recipe.pack.repo = "org/name";
  recipe.pack.revision = "main";
  check_lock(example(), recipe, "x.lock");
  recipe.pack.revision = "v2";
  CHECK_THROWS_WITH(check_lock(example(), recipe, "x.lock"),
                    "the lock was made for revision `main`, the recipe has `v2`");
  recipe.pack.repo = "org/other";
  CHECK_THROWS_WITH(check_lock(example(), recipe, "x.lock"),
                    "the lock was made for the repository `org/name`, the recipe has `org/other`");
}

TEST_CASE("lock of a folder hashes its files; --check finds a changed byte", "[lock]") {
  const Folder folder;
  folder.write("pack/config.json", "{}");
  folder.write("pack/tokenizer.json", "abc");
  const fs::path recipe = folder.write("x.yaml",
                                       "schema: tandem.recipe/v1\nname: x\nmodel: {name: m, family: other}\n"
                                       "pack: {path: ./pack, format: other}\n"
                                       "engine: {kind: command, program: p, argv: [serve], context: 4k}\n");
  const LockOptions options{.load = {.recipe = recipe, .cluster = {}, .sets = {}}, .check = false};
  const LockOptions check{.load = options.load, .check = true};
  std::ostringstream out;
  CHECK_THROWS_WITH(lock_command(check, false, out), "the recipe has no lock");
  lock_command(options, false, out);
  lock_command(check, false, out);
  const LoadedRecipe loaded = load_recipe(options.load);
  const auto lock = find_lock(loaded.recipe, recipe);
  REQUIRE(lock);
  REQUIRE(lock->files.size() == 2);
  CHECK(lock->files[1].name == "tokenizer.json");
  CHECK(lock->files[1].bytes == 3);
  CHECK(lock->files[1].sha256 == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  folder.write("pack/tokenizer.json", "abd");
  CHECK_THROWS_WITH(lock_command(check, false, out), "the pack is no longer what the lock says");
}

/// The example packs behind the hub's protocol, until the end of the test.
class ServedPacks {
 public:
  ServedPacks() : mirror_(options()), thread_([this] { mirror_.serve(); }) {}
  ~ServedPacks() {
    mirror_.stop();
    thread_.join();
  }
  std::string endpoint() const { return mirror_.endpoint(); }

 private:
  static MirrorOptions options() {
    MirrorOptions options;
    options.root = fs::path(TANDEM_SOURCE_DIR) / "examples" / "packs";
    options.port = 0;
    options.quiet = true;
    return options;
  }
  Mirror mirror_;
  std::thread thread_;
};

TEST_CASE("lock pins what the hub has, and a plan with it needs no weights to know the sizes", "[lock]") {
  const ServedPacks packs;
  const Folder folder;
  std::ifstream shipped(fs::path(TANDEM_SOURCE_DIR) / "recipes" / "ling-tiny-3.64bpw.yaml");
  std::ostringstream text;
  text << shipped.rdbuf();
  const fs::path recipe = folder.write("tiny.yaml", text.str());
  const LoadOptions load{
      .recipe = recipe,
      .cluster = {},
      .sets = {"cluster.hub.endpoint=" + packs.endpoint(),
               "cluster.nodes=[{name: local, folders: {hub: " + (folder.path() / "hub").string() + "}}]"}};
  std::ostringstream out;
  lock_command({.load = load, .check = false}, false, out);
  lock_command({.load = load, .check = true}, false, out);
  CHECK(out.str().find("tandem/ling-tiny-exl3-3.64bpw at ") != std::string::npos);

  const AskNodes ask = [](const Recipe&, const Cluster&, const PackFacts&) {
    NodeFacts facts;
    facts.name = "local";
    facts.memory_available_bytes = int64_t{4} << 30;
    facts.hub_cache = "/hub";
    facts.ranks_folder = "/ranks";
    facts.runtime_program = "/usr/bin/tandem-runtime";
    return std::vector<NodeFacts>{facts};
  };
  const PreparedPlan prepared = prepare_plan({.load = load, .offline = false}, ask);
  REQUIRE(prepared.lock);
  const Plan& plan = prepared.plan;
  CHECK(plan.status == PlanStatus::changes);
  CHECK(plan.pack_revision == prepared.lock->commit);
  CHECK(plan.files == prepared.lock->files);
  CHECK(plan.notes.empty());  // the lock pins what the recipe leaves open
  // config.json came from the hub, so memory is known before a weight is downloaded: the estimate is near the download.
  CHECK(plan.weights_estimated);
  CHECK(static_cast<double>(plan.weights.total_bytes) == Approx(14'772'620.0).epsilon(0.05));
  CHECK(plan.largest_context_tokens == 4096);
  CHECK(plan.ranks[0].memory_known);
}

TEST_CASE("a hub that is gone does not keep a downloaded branch from being planned", "[plan]") {
  const Folder folder;
  const LoadOptions load{.recipe = folder.write("x.yaml",
                                                "schema: tandem.recipe/v1\nname: x\nmodel: {name: m, family: "
                                                "bailing_hybrid}\npack: {repo: tandem/ling-tiny-exl3-3.64bpw}\n"
                                                "parallel: {tensor: 2}\nengine: {context: 4k}\n"),
                         .cluster = {},
                         .sets = {}};
  LoadedRecipe loaded = load_recipe(load);
  const PackFactsOptions options{.offline = false, .hub_cache = folder.path() / "hub", .lock = {}};
  {
    const ServedPacks packs;
    loaded.cluster.hub_endpoint = packs.endpoint();
    FetchOptions fetch;
    fetch.repo = loaded.recipe.pack.repo;
    fetch.hub.endpoint = packs.endpoint();
    fetch.cache = options.hub_cache;
    fetch_pack(fetch);
    CHECK(gather_pack_facts(loaded.recipe, loaded.cluster, options).note.empty());
  }
  const PackFacts facts = gather_pack_facts(loaded.recipe, loaded.cluster, options);
  CHECK(is_commit(facts.commit));
  CHECK(facts.weights.has_value());
  CHECK(facts.note.find("the downloaded commit serves") != std::string::npos);
}

TEST_CASE("plan --offline needs no machine, no server and no clock", "[plan]") {
  std::ostringstream out;
  const PlanOptions options{
      .load = {.recipe = fs::path(TANDEM_SOURCE_DIR) / "recipes" / "ling-3.1-flash-1019-3.03bpw-2x-dgx-spark.yaml",
               .cluster = {},
               .sets = {}},
      .offline = true};
  CHECK(plan_command(options, false, {}, out) == 10);
  CHECK(out.str().find("103.") != std::string::npos);
  std::ostringstream json;
  CHECK(plan_command(options, true, {}, json) == 10);
  CHECK(json.str().starts_with("{\n  \"schema_version\": 1,"));
}

}  // namespace
}  // namespace tandem
