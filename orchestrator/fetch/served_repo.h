#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "orchestrator/fetch/hub.h"

namespace tandem {

/// Tells whether a file is still the one that was hashed.
struct FileStamp {
  uint64_t device = 0;
  uint64_t inode = 0;
  int64_t size = 0;
  int64_t modified_ns = 0;

  bool operator==(const FileStamp&) const = default;
};

struct ServedFile {
  HubFile file;
  std::filesystem::path place;  ///< links resolved
  FileStamp stamp;
};

/// What a mirror gives out of one repository at one commit. Nothing outside this list can be asked for.
struct Listing {
  std::string commit;
  std::map<std::string, ServedFile> files;  ///< by path
};

/// One repository of a mirror: a folder, or a repository of a Hugging Face cache. Safe for several threads.
class ServedRepo {
 public:
  enum class Kind { folder, cache };
  enum class State { ready, hashing, no_revision };

  struct Answer {
    State state = State::no_revision;
    std::shared_ptr<const Listing> listing;  ///< when ready
    std::string message;                     ///< when not
  };

  /// @param folder  a real path: absolute, without links
  ServedRepo(Kind kind, std::filesystem::path folder);
  ~ServedRepo();

  /// The listing a revision stands for. Starts hashing what is not hashed yet, and waits for it up to `patience`.
  Answer find(const std::string& revision, std::chrono::milliseconds patience);

 private:
  std::string snapshot_commit(const std::string& revision) const;  // cache only; "" when there is none
  std::vector<ServedFile> scan(const std::filesystem::path& top, const std::filesystem::path& boundary) const;
  void hash_all(const std::stop_token& stop, std::vector<ServedFile> files);
  bool all_hashed(std::vector<ServedFile>& files) const;  // under mutex_; fills in the hashes

  const Kind kind_;
  const std::filesystem::path folder_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::filesystem::path, ServedFile> hashed_;  // by real path
  bool hashing_ = false;
  int64_t hashed_bytes_ = 0;
  int64_t bytes_to_hash_ = 0;
  std::jthread hasher_;
};

FileStamp stamp_of(int fd);  ///< all zero when it cannot be read

}  // namespace tandem
