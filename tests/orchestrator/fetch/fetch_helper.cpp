// A process of its own that fetches "org/pack", for tests that kill it or take its disk away.
//   fetch_helper plain      ENDPOINT CACHE RANGE_BYTES   one fetch
//   fetch_helper small-disk ENDPOINT CACHE BYTES         CACHE on a tmpfs of BYTES that is too small, then made larger
//   fetch_helper file-limit ENDPOINT CACHE BYTES         no file may grow beyond BYTES
// Prints errors as the command line does, and ends with their exit code; 77 when a tmpfs cannot be mounted here.
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/orchestrator/fetch/fixture.h"

using namespace tandem;
using namespace tandem::testing;

namespace {

constexpr int kCannotMount = 77;

bool mount_tmpfs(const std::string& folder, const std::string& bytes, unsigned long flags) {
  return mount("tmpfs", folder.c_str(), "tmpfs", flags, ("size=" + bytes).c_str()) == 0;
}

/// A mount that only this process sees.
bool own_mounts() {
  const auto user = std::to_string(getuid());
  if (getuid() == 0)
    return unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  write_file("/proc/self/setgroups", "deny");
  write_file("/proc/self/uid_map", "0 " + user + " 1");
  return mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

int small_disk(const FetchOptions& options, const std::string& bytes) {
  fs::create_directories(options.cache);
  if (!own_mounts() || !mount_tmpfs(options.cache, bytes, 0)) return kCannotMount;
  const Error error = error_of(options);
  std::fputs(error.report().c_str(), stdout);
  std::printf("visible: %s\n", nothing_visible(options.cache) ? "nothing" : "something");
  if (!mount_tmpfs(options.cache, "64m", MS_REMOUNT)) return kCannotMount;
  const FetchResult result = fetch_pack(options);
  std::printf("then: %s, reused %s\n", difference(result.snapshot, test_pack()).empty() ? "whole" : "broken",
              result.bytes_reused > 0 ? "some" : "none");
  return 0;
}

int file_limit(const FetchOptions& options, const std::string& bytes) {
  const rlimit limit{std::stoul(bytes), std::stoul(bytes)};
  std::signal(SIGXFSZ, SIG_IGN);
  if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return kCannotMount;
  const Error error = error_of(options);
  std::fputs(error.report().c_str(), stdout);
  std::printf("visible: %s\n", nothing_visible(options.cache) ? "nothing" : "something");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const std::string mode = argv[1];
  try {
    FetchOptions options = test_options(argv[2], argv[3]);
    if (mode == "small-disk") return small_disk(options, argv[4]);
    if (mode == "file-limit") return file_limit(options, argv[4]);
    options.range_bytes = std::stol(argv[4]);
    fetch_pack(options);
    return 0;
  } catch (const Error& error) {
    std::fputs(error.report().c_str(), stdout);
    return exit_code(error.kind());
  }
}
