#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace tandem {

struct MirrorOptions {
  std::filesystem::path root;         ///< a Hugging Face cache, a folder of packs (NAME/ or ORG/NAME/), or one pack
  std::string address = "127.0.0.1";  ///< to listen on
  int port = 8090;                    ///< 0 = any free one
  std::filesystem::path log;          ///< the request log is appended here; "" = stderr
  bool quiet = false;                 ///< no request log at all, unless `log` is set
  int64_t bytes_per_second = 0;       ///< over all connections; 0 = no limit
  int max_connections = 32;           ///< served at the same time; more wait
};

/// Serves packs read-only in the hub's protocol: model info, file list, contents with ranges.
///
/// Only paths in a repository's listing can be asked for, so no request can leave it; files that a symlink would take
/// out of the pack (out of the repository's folder, in a cache) are not listed. Hashes are computed once a repository,
/// in the background, and again when a file changes; until they are known requests get 503 with Retry-After.
/// A folder's commit is a hash of its list of paths, sizes and content hashes: equal folders have equal commits.
/// One line a request is logged before its answer: "METHOD PATH RANGE STATUS", RANGE being "first-last" or "-".
class Mirror {
 public:
  /// Binds the port. @throws Error (fetch) when the folder cannot be served or the port is taken
  explicit Mirror(MirrorOptions options);
  ~Mirror();

  int port() const;
  std::string endpoint() const;  ///< "http://127.0.0.1:8090"
  int64_t num_repos() const;

  /// Serves until stop() is called.
  void serve();
  void stop();  ///< from any thread

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// `tandem mirror`: prints {"endpoint": "...", "port": N, "repos": N, "schema_version": 1} as one line on stdout once
/// the port is open, serves until `stop` is set (by a signal handler), then ends cleanly.
void run_mirror(const MirrorOptions& options, const std::atomic<bool>& stop);

}  // namespace tandem
