#include "orchestrator/node/rotating_log.h"

#include <filesystem>
#include <fstream>

#include "tests/catch.h"
#include "tests/orchestrator/temporary_folder.h"

using namespace tandem::node;
using tandem::test::TemporaryFolder;

namespace {

std::string line_number(int i) {
  return "line " + std::to_string(i);
}

}  // namespace

TEST_CASE("a log keeps a bounded number of bytes and the newest lines", "[log]") {
  const TemporaryFolder folder;
  const std::string path = folder / "rank.log";
  RotatingLog log(path, 1000, 3);
  for (int i = 0; i < 5000; ++i) log.write(line_number(i) + "\n");
  int64_t bytes = 0;
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    ++files;
    bytes += static_cast<int64_t>(entry.file_size());
  }
  CHECK(files == 3);
  CHECK(bytes <= 3 * 1000);
  const auto lines = last_lines(path, 100);
  REQUIRE(lines.size() == 100);
  for (int i = 0; i < 100; ++i) CHECK(lines[static_cast<size_t>(i)] == line_number(4900 + i));
}

TEST_CASE("a rotation never tears a line, however the bytes arrive", "[log]") {
  const TemporaryFolder folder;
  const std::string path = folder / "rank.log";
  std::string text;
  for (int i = 0; i < 300; ++i) text += line_number(i) + "\n";
  const size_t piece = GENERATE(1, 7, 64, 1000, 100000);
  RotatingLog log(path, 100, 100);
  for (size_t at = 0; at < text.size(); at += piece) log.write(std::string_view(text).substr(at, piece));
  const auto lines = last_lines(path, 1000);
  REQUIRE(lines.size() == 300);
  for (int i = 0; i < 300; ++i) CHECK(lines[static_cast<size_t>(i)] == line_number(i));
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) CHECK(entry.file_size() <= 110);
}

TEST_CASE("output without line ends is bounded, too", "[log]") {
  const TemporaryFolder folder;
  RotatingLog log((folder / "rank.log").string(), 1000, 2);
  for (int i = 0; i < 100; ++i) log.write(std::string(333, 'x'));
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) CHECK(entry.file_size() <= 2000);
}

TEST_CASE("a log goes on where an earlier run left it", "[log]") {
  const TemporaryFolder folder;
  const std::string path = folder / "rank.log";
  RotatingLog(path, 1000, 2).write("first\n");
  RotatingLog(path, 1000, 2).write("second\n");
  CHECK(last_lines(path, 10) == std::vector<std::string>{"first", "second"});
}

TEST_CASE("control characters of a rank cannot reach a terminal through its log", "[log]") {
  const TemporaryFolder folder;
  const std::string path = folder / "rank.log";
  RotatingLog(path, 1000, 2).write("\x1b[2Jred\n");
  CHECK(last_lines(path, 1) == std::vector<std::string>{"\\x1b[2Jred"});
}

TEST_CASE("a follower sees every line across rotations", "[log]") {
  const TemporaryFolder folder;
  const std::string path = folder / "rank.log";
  RotatingLog log(path, 200, 3);
  log.write("before\n");
  LogFollower follower(path, /*from_end=*/true);
  std::vector<std::string> seen;
  for (int i = 0; i < 500; ++i) {
    log.write(line_number(i) + "\n");
    for (const auto& line : follower.poll()) seen.push_back(line);
  }
  for (const auto& line : follower.poll()) seen.push_back(line);
  REQUIRE(seen.size() == 500);
  for (int i = 0; i < 500; ++i) CHECK(seen[static_cast<size_t>(i)] == line_number(i));
}
