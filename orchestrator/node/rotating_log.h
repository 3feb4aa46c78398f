#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/node/process.h"

namespace tandem::node {

/// A log of bounded size on disk: PATH is being written, PATH.1 is the one before, up to PATH.(files - 1).
/// Lines are kept whole across a rotation unless one is longer than a whole file.
class RotatingLog {
 public:
  /// Appends to what is there. @throws Error  kind `node`
  RotatingLog(std::string path, int64_t file_bytes, int files);

  /// Never throws: a full disk must not take the rank down with it. What could not be written is counted and said
  /// in the log as soon as it can be written again.
  void write(std::string_view bytes);

 private:
  void rotate();
  void append(std::string_view bytes);

  std::string path_;
  int64_t file_bytes_;
  int files_;
  FileDescriptor file_;
  int64_t size_ = 0;
  int64_t lost_bytes_ = 0;
  bool at_line_start_ = true;
};

/// The last `count` lines over PATH and the files before it, oldest first, each made printable and cut at 2 KiB.
std::vector<std::string> last_lines(const std::string& path, int count);

/// Reads a log while it is written and rotated.
class LogFollower {
 public:
  /// @param from_end  starts after what is there now
  LogFollower(std::string path, bool from_end);

  /// The complete lines that came since the last call, printable. A line longer than 64 KiB comes in pieces.
  std::vector<std::string> poll();

 private:
  void reopen();
  bool read_available();

  std::string path_;
  FileDescriptor file_;
  uint64_t inode_ = 0;
  std::string partial_;
};

}  // namespace tandem::node
