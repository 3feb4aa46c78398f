#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/fetch/cache_layout.h"
#include "orchestrator/fetch/content_hash.h"
#include "orchestrator/fetch/journal.h"

namespace tandem {

/// One file on its way into the cache: which of its ranges are there, its hash so far, its journal. Several threads
/// may work on different ranges of it.
///
/// The hash. A hash wants the bytes in order, parallel ranges arrive out of order. So a frontier moves through the
/// file: whoever finishes a range hashes on from the frontier over all finished ranges, reading them back from the page
/// cache, where they have just been written. When the last range arrives almost everything is hashed already; there is
/// no second pass over the disk. The frontier's hash state goes to the journal, so a resumed run reads only what was
/// finished but lay behind a gap. (Hashing in the receiving thread was not enough: only the range at the frontier
/// could be hashed on arrival, which is one connection of eight.)
class PartialFile {
 public:
  /// A piece of work: a range, or (`whole`) everything that is missing, in one stream.
  struct Claim {
    int64_t index = 0;
    int64_t begin = 0;
    int64_t end = 0;
    bool whole = false;
  };

  /// Reads what an earlier run left of this file. Changes nothing on disk.
  /// @param ref  the branch asked for, "" for a commit; for the journal
  PartialFile(const RepoFolder& folder, HubFile file, int64_t range_bytes, std::string ref);

  const HubFile& file() const { return file_; }
  int64_t bytes_done() const { return bytes_done_; }        ///< received, finished or not
  int64_t resumed_bytes() const { return resumed_bytes_; }  ///< finished by an earlier run
  int64_t missing_disk_bytes() const;                       ///< still to be allocated on disk
  bool published() const { return published_; }

  std::optional<Claim> claim();
  void release(const Claim& claim);  ///< gives an unfinished claim back
  bool is_done(int64_t index) const;
  Claim range(int64_t index) const;
  int64_t num_ranges() const { return num_ranges_; }
  int64_t range_bytes() const { return range_bytes_; }
  /// The server does not do ranges: from now on only whole claims, one at a time.
  void use_one_stream();

  void write(int64_t offset, std::string_view data);
  /// Bytes that were written but will come again no longer count as done.
  void uncount(int64_t bytes) { bytes_done_ -= bytes; }
  /// All bytes of the range are written: makes them durable, then notes that in the journal.
  void finish(int64_t index);

  /// True when all ranges are there and nobody has hashed the rest yet (an earlier run was killed at that point).
  bool waits_for_hash() const;
  /// Moves the frontier as far as it goes. True for one caller: the one who must call publish().
  bool advance_hash();
  /// Compares the hash. When it is right, gives the file its final name and returns "". When it is wrong, returns what
  /// is wrong; then either restart() or discard().
  std::string publish();
  void restart();  ///< forgets all content and starts again
  void discard();  ///< removes what is on disk

 private:
  enum class RangeState : uint8_t { todo, claimed, done };
  void open_files();  // under mutex_
  void hash_range(const Claim& range);

  const RepoFolder folder_;
  const HubFile file_;
  const std::string ref_;
  int64_t range_bytes_;
  int64_t num_ranges_;
  int64_t resumed_bytes_ = 0;

  mutable std::mutex mutex_;
  std::vector<RangeState> ranges_;
  int64_t claims_ = 0;
  bool one_stream_ = false;
  bool resumed_ = false;  // the journal of an earlier run goes on
  bool hashing_ = false;
  bool handed_out_ = false;
  int64_t hashed_ranges_ = 0;
  std::optional<ContentHash> hash_;
  FileDescriptor data_;
  std::optional<Journal> journal_;
  std::atomic<int64_t> bytes_done_{0};
  std::atomic<bool> published_{false};
};

}  // namespace tandem
