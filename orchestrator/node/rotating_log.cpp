#include "orchestrator/node/rotating_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "runtime/common/error.h"

namespace tandem::node {
namespace {

constexpr size_t kLineShownBytes = 2048;
constexpr size_t kLineHeldBytes = 64 << 10;

std::string numbered(const std::string& path, int number) {
  return number == 0 ? path : path + "." + std::to_string(number);
}

/// The last lines of one file, oldest first. Reads backwards in blocks, so a large log costs no more than a small one.
std::vector<std::string> last_lines_of_file(const std::string& path, int count) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  std::vector<std::string> lines;
  if (!file || count <= 0) return lines;
  constexpr int64_t kBlock = 64 << 10;
  constexpr int64_t kMostBytes = 16 << 20;
  int64_t begin = file.tellg();
  std::string text;
  const int64_t oldest = std::max<int64_t>(0, begin - kMostBytes);
  while (begin > oldest && std::count(text.begin(), text.end(), '\n') <= count) {
    const int64_t bytes = std::min(kBlock, begin - oldest);
    begin -= bytes;
    std::string block(static_cast<size_t>(bytes), '\0');
    file.seekg(begin);
    file.read(block.data(), bytes);
    block.resize(static_cast<size_t>(std::max<std::streamsize>(file.gcount(), 0)));
    text.insert(0, block);
  }
  size_t start = 0;
  while (start < text.size()) {
    const size_t end = std::min(text.find('\n', start), text.size());
    lines.push_back(printable(std::string_view(text).substr(start, end - start), kLineShownBytes));
    start = end + 1;
  }
  if (static_cast<int>(lines.size()) > count) lines.erase(lines.begin(), lines.end() - count);
  return lines;
}

}  // namespace

RotatingLog::RotatingLog(std::string path, int64_t file_bytes, int files)
    : path_(std::move(path)), file_bytes_(std::max<int64_t>(file_bytes, 1)), files_(std::max(files, 1)) {
  file_ = FileDescriptor(open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!file_) throw Error(ErrorKind::node, "cannot write the log: " + std::string(std::strerror(errno)), path_);
  struct stat info {};
  if (fstat(file_.get(), &info) == 0) size_ = info.st_size;
}

void RotatingLog::write(std::string_view bytes) {
  while (!bytes.empty()) {
    if (size_ >= file_bytes_ && (at_line_start_ || size_ >= 2 * file_bytes_)) rotate();
    const auto room = static_cast<size_t>(std::max<int64_t>(file_bytes_ - size_, 0));
    size_t take = bytes.size();
    if (take > room) {  // end the file at its last line that fits, else with the line that reaches over its end
      size_t newline = bytes.substr(0, room).rfind('\n');
      if (newline == std::string_view::npos) newline = bytes.find('\n');
      const auto most = static_cast<size_t>(2 * file_bytes_ - size_);
      take = std::min(newline == std::string_view::npos ? bytes.size() : newline + 1, most);
    }
    append(bytes.substr(0, take));
    at_line_start_ = bytes[take - 1] == '\n';
    bytes.remove_prefix(take);
  }
}

void RotatingLog::append(std::string_view bytes) {
  if (lost_bytes_ > 0) {
    const std::string note = "[tandem: " + std::to_string(lost_bytes_) + " bytes of log were lost, disk full?]\n";
    if (::write(file_.get(), note.data(), note.size()) == static_cast<ssize_t>(note.size())) {
      size_ += static_cast<int64_t>(note.size());
      lost_bytes_ = 0;
    }
  }
  while (!bytes.empty()) {
    const ssize_t written = ::write(file_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      lost_bytes_ += static_cast<int64_t>(bytes.size());
      return;
    }
    size_ += written;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

void RotatingLog::rotate() {
  for (int i = files_ - 1; i > 0; --i) std::rename(numbered(path_, i - 1).c_str(), numbered(path_, i).c_str());
  const int truncate = files_ == 1 ? O_TRUNC : 0;
  FileDescriptor next(open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | truncate, 0600));
  if (next) file_ = std::move(next);  // else go on in the renamed file: longer than asked, but nothing is lost
  size_ = 0;
  at_line_start_ = true;
}

std::vector<std::string> last_lines(const std::string& path, int count) {
  std::vector<std::string> lines;
  for (int i = 0; static_cast<int>(lines.size()) < count; ++i) {
    if (access(numbered(path, i).c_str(), R_OK) != 0) break;
    const auto older = last_lines_of_file(numbered(path, i), count - static_cast<int>(lines.size()));
    lines.insert(lines.begin(), older.begin(), older.end());
  }
  return lines;
}

LogFollower::LogFollower(std::string path, bool from_end) : path_(std::move(path)) {
  reopen();
  if (file_ && from_end) lseek(file_.get(), 0, SEEK_END);
}

void LogFollower::reopen() {
  file_ = FileDescriptor(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  inode_ = file_ && fstat(file_.get(), &info) == 0 ? info.st_ino : 0;
}

bool LogFollower::read_available() {
  char block[16 << 10];
  bool any = false;
  while (file_ && partial_.size() < (1 << 20)) {
    const ssize_t bytes = read(file_.get(), block, sizeof block);
    if (bytes <= 0) break;
    partial_.append(block, static_cast<size_t>(bytes));
    any = true;
  }
  return any;
}

std::vector<std::string> LogFollower::poll() {
  if (!file_) reopen();
  if (!read_available()) {
    struct stat info {};
    const bool rotated = stat(path_.c_str(), &info) == 0 && info.st_ino != inode_;
    if (rotated) {
      reopen();
      read_available();
    } else if (file_ && fstat(file_.get(), &info) == 0 && info.st_size < lseek(file_.get(), 0, SEEK_CUR)) {
      lseek(file_.get(), 0, SEEK_SET);  // truncated in place: a log of one file starts over
      read_available();
    }
  }
  std::vector<std::string> lines;
  size_t start = 0;
  for (size_t end; (end = partial_.find('\n', start)) != std::string::npos; start = end + 1)
    lines.push_back(printable(std::string_view(partial_).substr(start, end - start), kLineHeldBytes));
  partial_.erase(0, start);
  if (partial_.size() > kLineHeldBytes) {
    lines.push_back(printable(partial_, kLineHeldBytes));
    partial_.clear();
  }
  return lines;
}

}  // namespace tandem::node
