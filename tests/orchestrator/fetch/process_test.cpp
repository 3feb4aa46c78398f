#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "orchestrator/fetch/journal.h"
#include "runtime/common/hash.h"
#include "tests/catch.h"
#include "tests/orchestrator/fetch/fixture.h"

using namespace tandem;
using namespace tandem::testing;

namespace {

constexpr int64_t kRange = 16 * 1024;

/// The helper as a child process.
class Helper {
 public:
  Helper(const std::string& mode, const std::string& endpoint, const fs::path& cache, int64_t bytes,
         const fs::path& output) {
    const std::string program = TANDEM_FETCH_HELPER;
    std::vector<std::string> words = {program, mode, endpoint, cache.string(), std::to_string(bytes)};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    const int failed = posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed != 0) throw std::runtime_error("the helper does not start");
  }
  ~Helper() {
    if (pid_ > 0) kill_now();
  }

  bool ended() {
    if (pid_ > 0 && waitpid(pid_, &status_, WNOHANG) == pid_) pid_ = -1;
    return pid_ < 0;
  }
  void kill_now() {
    kill(pid_, SIGKILL);
    waitpid(pid_, &status_, 0);
    pid_ = -1;
  }
  int exit_code() {
    while (!ended()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : -1;
  }

 private:
  pid_t pid_ = -1;
  int status_ = 0;
};

struct LoggedRequest {
  std::string path;
  int64_t first = 0;
  int64_t last = 0;
};

/// Requests for contents in a mirror's log; the number of lines in all.
std::vector<LoggedRequest> read_log(const fs::path& log) {
  std::vector<LoggedRequest> requests;
  std::istringstream lines(read_file(log));
  for (std::string method, target, range, status; lines >> method >> target >> range >> status;) {
    const auto resolve = target.find("/resolve/");
    if (resolve == std::string::npos) continue;
    LoggedRequest request;
    request.path = target.substr(target.find('/', resolve + 9) + 1);
    request.last = INT64_MAX;
    if (range != "-") {
      request.first = std::stoll(range);
      request.last = std::stoll(range.substr(range.find('-') + 1));
    }
    requests.push_back(request);
  }
  return requests;
}

using Finished = std::map<std::string, std::set<int64_t>>;  // path -> ranges

/// What is safely on disk: whole blobs, and what journals say of the others.
Finished finished_ranges(const fs::path& cache, const std::map<std::string, std::string>& files) {
  Finished finished;
  const fs::path blobs = cache / "models--org--pack/blobs";
  for (const auto& [path, content] : files) {
    const auto num_ranges = static_cast<int64_t>((content.size() + kRange - 1) / kRange);
    const fs::path blob = blobs / sha256_hex(content);
    const auto state = Journal::load(blob.string() + ".tandem.journal");
    for (int64_t i = 0; i < num_ranges; ++i) {
      if (fs::exists(blob) || (state && state->done[static_cast<size_t>(i)])) finished[path].insert(i);
    }
  }
  return finished;
}

}  // namespace

TEST_CASE("twenty kills at random moments cost no finished range and leave nothing behind", "[fetch]") {
  TemporaryFolder folder;
  std::map<std::string, std::string> files;
  files["model-00001-of-00002.safetensors"] = random_bytes(1'600'003, 11);
  files["model-00002-of-00002.safetensors"] = random_bytes(1'200'000, 12);
  for (const auto& [path, content] : files) write_file(folder / "packs/org/pack" / path, content);
  MirrorOptions options;
  options.root = folder / "packs";
  options.log = folder / "requests.log";
  options.bytes_per_second = 8'000'000;
  RunningMirror mirror(options);
  const fs::path cache = folder / "cache";

  const auto seed = static_cast<uint32_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  INFO("seed " << seed);
  std::minstd_rand random(seed);
  Finished finished;
  size_t seen = 0;
  const auto check_log = [&] {
    const auto requests = read_log(options.log);
    for (; seen < requests.size(); ++seen) {
      for (const int64_t index : finished[requests[seen].path]) {
        const int64_t begin = index * kRange;
        const bool again = requests[seen].first < begin + kRange && requests[seen].last >= begin;
        CHECK_FALSE(again);
      }
    }
  };
  int killed = 0;
  for (int life = 0; life < 20; ++life) {
    const size_t until = read_log(options.log).size() + random() % 12;
    Helper helper("plain", mirror.endpoint(), cache, kRange, folder / "output");
    // By requests and not by time, so that a slow machine gets as far as a fast one; then some jitter.
    while (!helper.ended() && read_log(options.log).size() < until)
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 4000));
    if (!helper.ended()) {
      helper.kill_now();
      ++killed;
    }
    check_log();
    finished = finished_ranges(cache, files);
    const fs::path snapshots = cache / "models--org--pack/snapshots";
    if (fs::exists(snapshots)) {
      for (const auto& entry : fs::recursive_directory_iterator(snapshots)) {
        if (entry.is_symlink()) CHECK(read_file(entry.path()) == files.at(entry.path().filename().string()));
      }
    }
  }
  CHECK(killed >= 10);
  Helper last("plain", mirror.endpoint(), cache, kRange, folder / "output");
  CHECK(last.exit_code() == 0);
  INFO(read_file(folder / "output"));
  check_log();
  const fs::path snapshots = cache / "models--org--pack/snapshots";
  REQUIRE(fs::exists(snapshots));
  CHECK(difference(fs::directory_iterator(snapshots)->path(), files).empty());
  CHECK(leftovers(cache).empty());
}

TEST_CASE("a full disk is an error that shows nothing by half, and more space continues", "[fetch]") {
  TemporaryFolder folder;
  int64_t pack_bytes = 0;
  for (const auto& [path, content] : test_pack()) {
    write_file(folder / "packs/org/pack" / path, content);
    pack_bytes += static_cast<int64_t>(content.size());
  }
  MirrorOptions options;
  options.root = folder / "packs";
  RunningMirror mirror(options);

  // Enough by the sum of sizes, too small with journals and rounding to pages: the disk fills up on the way.
  const bool on_the_way = GENERATE(false, true);
  const int64_t disk = on_the_way ? (pack_bytes + 4095) / 4096 * 4096 : 200 * 1024;
  Helper helper("small-disk", mirror.endpoint(), folder / "cache", disk, folder / "output");
  const int code = helper.exit_code();
  if (code == 77) TANDEM_SKIP("no tmpfs can be mounted here");
  const std::string output = read_file(folder / "output");
  INFO(output);
  CHECK(code == 0);
  CHECK(output.find(on_the_way ? "no space left on the disk" : "not enough disk space") != std::string::npos);
  CHECK(output.find("visible: nothing") != std::string::npos);
  CHECK(output.find(on_the_way ? "then: whole, reused some" : "then: whole, reused none") != std::string::npos);
}

TEST_CASE("a limit on file sizes is told apart from a full disk", "[fetch]") {
  TemporaryFolder folder;
  for (const auto& [path, content] : test_pack()) write_file(folder / "packs/org/pack" / path, content);
  MirrorOptions options;
  options.root = folder / "packs";
  RunningMirror mirror(options);
  Helper helper("file-limit", mirror.endpoint(), folder / "cache", 100'000, folder / "output");
  CHECK(helper.exit_code() == 0);
  const std::string output = read_file(folder / "output");
  INFO(output);
  CHECK(output.find("a quota or file size limit was reached") != std::string::npos);
  CHECK(output.find("visible: nothing") != std::string::npos);
}
