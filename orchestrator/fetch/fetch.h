#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "orchestrator/fetch/hub.h"

namespace tandem {

/// What to fetch, from where, to where. Plain data with working defaults: only `repo` must be given.
struct FetchOptions {
  std::string repo;                   ///< "org/name" or "name"
  std::string revision = "main";      ///< branch, tag or commit; resolved once
  HubOptions hub;                     ///< see hub_options_from_environment()
  std::filesystem::path cache;        ///< "" = hub_cache_dir()
  std::vector<std::string> include;   ///< patterns with * and ?, matched against whole paths; empty = every file
  std::vector<HubFile> expected;      ///< from a lock file: exactly these are fetched, any difference is an error
  int parallel = 8;                   ///< connections
  int64_t range_bytes = 32LL << 20;   ///< a file is requested in pieces of this size, a multiple of 64
  int64_t reserve_bytes = 2LL << 30;  ///< free space that must remain on the cache's file system
  bool offline = false;               ///< only say whether the cache has it; never use the network
  bool verify = false;                ///< hash files that are already in the cache, too
};

struct FetchProgress {
  enum class Phase { listing, waiting_for_lock, downloading, verifying, done };
  Phase phase = Phase::listing;
  std::string file;  ///< the file furthest along among those in work; "" when none
  int64_t file_bytes_done = 0;
  int64_t file_bytes_total = 0;
  int64_t files_done = 0;
  int64_t files_total = 0;
  int64_t bytes_done = 0;  ///< of bytes_total, including what was in the cache at the start
  int64_t bytes_total = 0;
  double bytes_per_second = 0;         ///< over the last seconds, network only
  std::chrono::seconds remaining{-1};  ///< -1 = not known yet
  std::chrono::seconds file_remaining{-1};
  std::string message;  ///< what went wrong and is being tried again; "" when nothing
};

struct FetchResult {
  std::string repo;
  std::string commit;
  std::filesystem::path snapshot;  ///< the folder with the files under their names
  std::vector<HubFile> files;      ///< what the folder holds of the wanted files
  int64_t bytes_total = 0;
  int64_t bytes_downloaded = 0;  ///< in this run, over the network
  int64_t bytes_reused = 0;      ///< were in the cache, whole or as finished ranges
  int64_t requests = 0;          ///< of file contents
  int64_t retries = 0;
  std::chrono::milliseconds elapsed{0};
};

using FetchCallback = std::function<void(const FetchProgress&)>;

/// Makes a repository's files at one commit present in the cache, whole and verified, and returns their folder.
///
/// Safe to kill at any moment and to run again: finished ranges are not requested a second time, and a file
/// appears under its final name only when all of it is there and its hash is right. Two runs for the same repository
/// take turns. What the cache already holds, from whatever tool, is used.
/// @param on_progress  called from the calling thread, about four times a second and at every change of phase
/// @param cancel       set from another thread or a signal handler; the call then ends soon with Error (interrupted)
/// @throws Error       kind fetch or interrupted; never leaves a half-visible file
FetchResult fetch_pack(const FetchOptions& options, const FetchCallback& on_progress = {},
                       const std::atomic<bool>* cancel = nullptr);

/// A pack that is a folder on this machine: nothing is copied. Each expected file must be there with its size and,
/// where given, its sha256. With no expected files, the folder must exist and hold at least one regular file.
FetchResult verify_folder(const std::filesystem::path& folder, const std::vector<HubFile>& expected,
                          const FetchCallback& on_progress = {}, const std::atomic<bool>* cancel = nullptr);

/// Where a recipe's `pack.url` points: a folder ("file:///dir"), or a repository on a hub or mirror
/// ("http://host:port/org/name"; an endpoint and a repo).
struct PackUrl {
  std::filesystem::path folder;  ///< "" when it is a hub
  std::string endpoint;
  std::string repo;
};
PackUrl parse_pack_url(const std::string& url);

/// "3.2 GiB of 205.4 GiB   1%   212.3 MiB/s   16m 40s left   model-00001-of-00035.safetensors": one line, no newline.
std::string format_progress(const FetchProgress& progress);

}  // namespace tandem
