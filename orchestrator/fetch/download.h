#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "orchestrator/fetch/hub_transport.h"
#include "orchestrator/fetch/partial_file.h"

namespace tandem {

struct DownloadJob {
  HubOptions hub;
  std::string repo;
  std::string commit;
  std::string ref;             ///< the branch asked for, "" for a commit
  std::vector<HubFile> files;  ///< those whose content is not in the cache
  int parallel = 8;
  int64_t range_bytes = 32LL << 20;
};

/// Where a download stands.
struct DownloadStatus {
  int64_t bytes_done = 0;     ///< of the job's files, with what earlier runs finished
  int64_t network_bytes = 0;  ///< received by this run
  int64_t files_done = 0;
  int64_t requests = 0;
  int64_t retries = 0;
  std::string file;  ///< the first one in work
  int64_t file_bytes_done = 0;
  int64_t file_bytes_total = 0;
  std::string message;  ///< of the last failure that is being tried again; "" once bytes flow again
};

/// Downloads files into a repository's blobs folder: ranges in parallel, tried again, resumed, hashed.
class Downloader {
 public:
  /// Reads what earlier runs left; downloads nothing yet.
  Downloader(const RepoFolder& folder, DownloadJob job, const std::atomic<bool>* cancel);
  ~Downloader();

  int64_t missing_disk_bytes() const;
  int64_t resumed_bytes() const;

  /// Returns when all files are in the blobs folder. @throws Error; unfinished files stay resumable
  /// @param on_tick  about ten times a second, from the calling thread
  void run(const std::function<void(const DownloadStatus&)>& on_tick);
  DownloadStatus status() const;

 private:
  struct Transfer;
  struct Task {
    Transfer* transfer = nullptr;
    std::optional<PartialFile::Claim> claim;  // nothing: only the hash is missing
  };
  struct Attempt;

  void work();
  std::optional<Task> next_task();
  void fetch_range(HubTransport& transport, Transfer& transfer, const PartialFile::Claim& claim);
  void fetch_whole(HubTransport& transport, Transfer& transfer, const PartialFile::Claim& claim);
  Attempt request(HubTransport& transport, Transfer& transfer, int64_t begin, int64_t end,
                  const std::function<bool(std::string_view)>& on_data);
  bool wait_or_fail(const Attempt& attempt, Retrier& retrier, const Transfer& transfer);
  void finish_file(Transfer& transfer);
  void fail(std::exception_ptr failure);
  void pause();
  bool stopped() const { return stopped_ || watch_.cancelled(); }

  const DownloadJob job_;
  HttpWatch watch_;
  std::vector<std::unique_ptr<Transfer>> transfers_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  size_t first_unfinished_ = 0;
  int running_ = 0;
  std::exception_ptr failure_;
  std::string message_;
  std::chrono::steady_clock::time_point not_before_;  // the server asked for a pause until then
  std::atomic<bool> stopped_{false};
  std::atomic<int64_t> network_bytes_{0};
  std::atomic<int64_t> requests_{0};
  std::atomic<int64_t> retries_{0};
};

}  // namespace tandem
