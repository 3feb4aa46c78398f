// Every file of tests/data/recipes/broken and the exact report of all its problems.
// TANDEM_UPDATE_EXPECTED=1 writes the .expected files anew; read the difference before committing it.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
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

}  // namespace
}  // namespace tandem
