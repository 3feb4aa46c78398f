#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <thread>

#include "orchestrator/fetch/fetch.h"
#include "orchestrator/fetch/mirror.h"
#include "runtime/common/error.h"

namespace tandem::testing {

namespace fs = std::filesystem;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "tandem-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const fs::path& path() const { return path_; }
  fs::path operator/(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

inline std::string random_bytes(size_t size, uint32_t seed) {
  std::minstd_rand random(seed);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random() >> 8);
  return bytes;
}

inline std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void write_file(const fs::path& path, const std::string& content) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

/// Small files and two larger than several test ranges, one of odd size, one in a sub-folder, one empty.
inline std::map<std::string, std::string> test_pack() {
  return {{"config.json", "{\"model_type\": \"test\"}\n"},
          {"empty.txt", ""},
          {"model-00001-of-00002.safetensors", random_bytes(300'001, 1)},
          {"model-00002-of-00002.safetensors", random_bytes(150'016, 2)},
          {"tokens/merges.txt", random_bytes(5'000, 3)}};
}

/// A mirror that serves in this process until the end of the scope.
class RunningMirror {
 public:
  explicit RunningMirror(MirrorOptions options)
      : mirror_(prepared(std::move(options))), thread_([this] { mirror_.serve(); }) {}
  ~RunningMirror() { mirror_.stop(); }

  std::string endpoint() const { return mirror_.endpoint(); }
  int port() const { return mirror_.port(); }

 private:
  static MirrorOptions prepared(MirrorOptions options) {
    options.port = 0;
    options.quiet = true;
    return options;
  }
  Mirror mirror_;
  std::jthread thread_;
};

/// Options that fail fast and cut small.
inline FetchOptions test_options(const std::string& endpoint, const fs::path& cache) {
  FetchOptions options;
  options.repo = "org/pack";
  options.hub.endpoint = endpoint;
  options.hub.retry.max_tries = 3;
  options.hub.retry.first_wait = std::chrono::milliseconds(1);
  options.hub.retry.longest_wait = std::chrono::milliseconds(5);
  options.hub.retry.stall_timeout = std::chrono::milliseconds(300);
  options.cache = cache;
  options.range_bytes = 64 * 1024;
  options.parallel = 3;
  options.reserve_bytes = 0;
  return options;
}

inline Error error_of(const FetchOptions& options) {
  try {
    fetch_pack(options);
  } catch (const Error& error) {
    return error;
  }
  throw std::runtime_error("the fetch succeeded where it should not");
}

/// Files whose names say that they are not whole.
inline std::vector<std::string> leftovers(const fs::path& folder) {
  std::vector<std::string> found;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.find(".tandem.") != std::string::npos) found.push_back(name);
  }
  return found;
}

/// "" when the snapshot has exactly these files.
inline std::string difference(const fs::path& snapshot, const std::map<std::string, std::string>& files) {
  for (const auto& [path, content] : files) {
    if (!fs::exists(snapshot / path)) return path + " is absent";
    if (read_file(snapshot / path) != content) return path + " differs";
  }
  size_t count = 0;
  for (const auto& entry : fs::recursive_directory_iterator(snapshot)) count += entry.is_directory() ? 0 : 1;
  return count == files.size() ? "" : "there are other files";
}

/// No file can be seen under a snapshot, and no blob has its final name.
inline bool nothing_visible(const fs::path& cache) {
  if (!fs::exists(cache)) return true;
  for (const auto& entry : fs::recursive_directory_iterator(cache)) {
    if (entry.is_symlink()) return false;
  }
  return true;
}

}  // namespace tandem::testing
