// Every file of tests/data/recipes/broken and the exact report of all its problems.
// TANDEM_UPDATE_EXPECTED=1 writes the .expected files anew; read the difference before committing it.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "orchestrator/recipe/load.h"
#include "tests/catch.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

const fs::path kFolder = fs::path(TANDEM_TEST_DATA) / "recipes" / "broken";

/// Makes the paths in messages short and the same everywhere.
class WorkingDirectory {
 public:
  explicit WorkingDirectory(const fs::path& path) : before_(fs::current_path()) { fs::current_path(path); }
  ~WorkingDirectory() { fs::current_path(before_); }

 private:
  fs::path before_;
};

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string report(const fs::path& recipe) {
  std::string text;
  for (const Error& problem : find_problems({.recipe = recipe, .cluster = {}, .sets = {}})) text += problem.report();
  return text;
}

TEST_CASE("every broken recipe is refused at the exact place, with what is wrong and how to fix it", "[recipe]") {
  const WorkingDirectory inside(kFolder);
  const bool update = std::getenv("TANDEM_UPDATE_EXPECTED") != nullptr;
  int recipes = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(kFolder)) {
    if (entry.path().extension() != ".yaml") continue;
    ++recipes;
    const std::string name = entry.path().filename().string();
    const std::string got = report(name);
    const fs::path expected = fs::path(name).replace_extension(".expected");
    if (update) std::ofstream(expected, std::ios::binary) << got;
    INFO(name);
    CHECK(got != "");
    CHECK(got == read(expected));
    CHECK(got.find("where: ") != std::string::npos);
    CHECK(got.find("fix:   ") != std::string::npos);
    CHECK_THROWS_AS(load_recipe({.recipe = name, .cluster = {}, .sets = {}}), Error);
  }
  CHECK(recipes >= 100);
}

TEST_CASE("what a terminal would act on never gets into a report", "[recipe]") {
  for (const fs::directory_entry& entry : fs::directory_iterator(kFolder)) {
    if (entry.path().extension() != ".yaml") continue;
    const std::string got = report(entry.path());
    INFO(entry.path().filename().string());
    CHECK(std::none_of(got.begin(), got.end(), [](unsigned char c) { return (c < 0x20 && c != '\n') || c == 0x7F; }));
  }
}

/// Reads a text as a recipe. @return how many problems it has
size_t problems_of(const fs::path& file, const std::string& text) {
  std::ofstream(file, std::ios::binary) << text;
  return find_problems({.recipe = file, .cluster = {}, .sets = {}}).size();
}

TEST_CASE("a megabyte of anything ends in a page of problems", "[recipe]") {
  std::string folder = (fs::temp_directory_path() / "tandem-broken-XXXXXX").string();
  REQUIRE(mkdtemp(folder.data()));
  const fs::path file = fs::path(folder) / "x.yaml";
  for (const char* piece :
       {"[", "{", "{a: ", "- ", "? ", "a: ", "a: 1\n", "x\n", "\"a\", ", "&a ", "*a ", "!a ", "---\n"}) {
    std::string text;
    while (text.size() < (200 << 10)) text += piece;
    INFO(piece);
    const size_t problems = problems_of(file, text);
    CHECK(problems >= 1);
    CHECK(problems <= 50);
  }
  fs::remove_all(folder);
}

TEST_CASE("a recipe with a few bytes changed is read or refused, never worse", "[recipe]") {
  std::string folder = (fs::temp_directory_path() / "tandem-broken-XXXXXX").string();
  REQUIRE(mkdtemp(folder.data()));
  const fs::path file = fs::path(folder) / "x.yaml";
  const std::string good = read(fs::path(TANDEM_SOURCE_DIR) / "recipes" / "reference.yaml");
  std::mt19937 random(20261028);
  const std::string alphabet = "[]{}:,-?&*!|>'\"%@`#\n\t \\0x1e~\x01\xff";
  for (int round = 0; round < 300; ++round) {
    std::string text = good;
    for (int change = 0; change < 3; ++change) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = alphabet[random() % alphabet.size()];
          break;
        case 1:
          text.erase(at, random() % 40);
          break;
        default:
          text.insert(at, 1, alphabet[random() % alphabet.size()]);
      }
    }
    CHECK(problems_of(file, text) <= 50);
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace tandem
