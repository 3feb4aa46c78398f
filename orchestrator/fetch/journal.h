#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/common/file.h"

namespace tandem {

/// What a journal is about. It is only believed for exactly this content.
struct JournalHeader {
  std::string etag;
  int64_t size = 0;
  int64_t range_bytes = 0;  ///< a multiple of 64
  std::string ref;          ///< the branch that was asked for, "" when it was a commit
  std::string path;         ///< in the repository

  int64_t num_ranges() const { return (size + range_bytes - 1) / range_bytes; }
};

/// The state a journal describes.
struct JournalState {
  JournalHeader header;
  std::vector<bool> done;     ///< (num_ranges) ranges that are safely on disk
  int64_t hashed_ranges = 0;  ///< this many from the start went into hash_state
  std::string hash_state;     ///< ResumableSha256::state() at that point, "" when hashed_ranges is 0

  int64_t done_bytes() const;
};

/// The journal of one unfinished file: which ranges need not be requested again.
///
/// A text file that only grows. Its first line is the header, each further line one fact; every line ends with a check
/// sum, so a line torn by a crash is recognised, and cut off by the next append. The order that makes it safe: bytes
/// are written to the file, synced, and only then is their range noted here. The journal itself is not synced: losing
/// its last lines costs a repeated download, nothing else.
class Journal {
 public:
  /// Starts a new journal, replacing any that is there.
  static Journal create(const std::filesystem::path& path, const JournalHeader& header);
  /// Continues the one that load() read.
  static Journal append_to(const std::filesystem::path& path);
  /// Nothing when there is none or its header is not one of ours.
  static std::optional<JournalState> load(const std::filesystem::path& path);

  void note_range(int64_t index);
  void note_hash(int64_t hashed_ranges, std::string_view state);

 private:
  Journal(FileDescriptor file, std::filesystem::path path) : file_(std::move(file)), path_(std::move(path)) {}
  void append(const std::string& line);

  FileDescriptor file_;
  std::filesystem::path path_;
};

}  // namespace tandem
