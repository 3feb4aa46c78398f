#include "runtime/common/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

#include "runtime/common/units.h"

namespace tandem {
namespace {

std::string reason(int code) {
  return std::generic_category().message(code);
}

[[noreturn]] void fail(ErrorKind kind, std::string_view doing, const std::filesystem::path& path, int code) {
  if (code == ENOSPC || code == EDQUOT)
    throw Error(kind, "the disk is full", path.string(), "free some space and run the command again");
  throw Error(kind, "cannot " + std::string(doing) + " '" + path.filename().string() + "': " + reason(code),
              path.string());
}

void write_all(int fd, std::string_view text, const std::filesystem::path& path, ErrorKind kind) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(kind, "write", path, errno);
    text.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

int FileDescriptor::release() {
  return std::exchange(fd_, -1);
}

void FileDescriptor::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

FileDescriptor open_for_reading(const std::filesystem::path& path, ErrorKind kind) {
  // O_NONBLOCK: opening a FIFO that nobody writes to would wait for ever.
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) fail(kind, "open", path, errno);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) fail(kind, "examine", path, errno);
  if (!S_ISREG(info.st_mode))
    throw Error(kind, "'" + path.filename().string() + "' is not a regular file", path.string());
  return file;
}

int64_t file_bytes(const FileDescriptor& file, const std::filesystem::path& path, ErrorKind kind) {
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) fail(kind, "examine", path, errno);
  return info.st_size;
}

void read_exactly(const FileDescriptor& file, int64_t offset, std::span<std::byte> buffer,
                  const std::filesystem::path& path, ErrorKind kind) {
  while (!buffer.empty()) {
    const ssize_t n = ::pread(file.get(), buffer.data(), buffer.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(kind, "read", path, errno);
    if (n == 0)
      throw Error(
          kind,
          "the file ends at byte " + std::to_string(offset) + ", " + std::to_string(buffer.size()) + " bytes too early",
          path.string(), "fetch it again");
    buffer = buffer.subspan(static_cast<size_t>(n));
    offset += n;
  }
}

std::string read_small_file(const std::filesystem::path& path, int64_t max_bytes, ErrorKind kind) {
  const FileDescriptor file = open_for_reading(path, kind);
  const int64_t size = file_bytes(file, path, kind);
  if (size > max_bytes)
    throw Error(kind,
                "'" + path.filename().string() + "' has " + format_bytes(size) + ", more than the limit of " +
                    format_bytes(max_bytes),
                path.string());
  std::string text(static_cast<size_t>(size), '\0');
  read_exactly(file, 0, std::as_writable_bytes(std::span(text)), path, kind);
  return text;
}

void write_file_atomic(const std::filesystem::path& path, std::string_view text, ErrorKind kind) {
  static std::atomic<int> counter{0};
  std::filesystem::path temporary = path;
  temporary.replace_filename("." + path.filename().string() + ".tmp-" + std::to_string(::getpid()) + "-" +
                             std::to_string(counter++));
  FileDescriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file) fail(kind, "create", path, errno);
  try {
    write_all(file.get(), text, path, kind);
    if (::fsync(file.get()) != 0) fail(kind, "write", path, errno);
    file.close();
    if (::rename(temporary.c_str(), path.c_str()) != 0) fail(kind, "replace", path, errno);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync_folder(path.parent_path(), kind);
}

void sync_folder(const std::filesystem::path& folder, ErrorKind kind) {
  const std::filesystem::path name = folder.empty() ? "." : folder;
  const FileDescriptor handle(::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!handle) fail(kind, "open", name, errno);
  // Some network file systems have no fsync for folders; the rename itself has happened either way.
  if (::fsync(handle.get()) != 0 && errno != EINVAL && errno != ENOTSUP) fail(kind, "sync", name, errno);
}

void make_folders(const std::filesystem::path& folder, ErrorKind kind) {
  std::error_code code;
  std::filesystem::create_directories(folder, code);
  if (code) fail(kind, "create the folder", folder, code.value());
}

int64_t free_disk_bytes(const std::filesystem::path& path, ErrorKind kind) {
  std::error_code code;
  std::filesystem::path existing = std::filesystem::absolute(path, code);
  while (!std::filesystem::exists(existing, code) && existing.has_relative_path()) existing = existing.parent_path();
  struct statvfs info {};
  if (::statvfs(existing.c_str(), &info) != 0) fail(kind, "examine the disk of", existing, errno);
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

MappedFile::MappedFile(const std::filesystem::path& path, ErrorKind kind) {
  const FileDescriptor file = open_for_reading(path, kind);
  size_ = static_cast<size_t>(file_bytes(file, path, kind));
  if (size_ == 0) return;  // mmap refuses a length of 0
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.get(), 0);
  if (address == MAP_FAILED) fail(kind, "map", path, errno);
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

// ---- StreamedFile ----

namespace {
/// Pages are handed to the disk in pieces of this size, and dropped from memory one piece later.
constexpr int64_t kFlushBytes = 16 << 20;
}  // namespace

struct StreamedFile::State {
  std::filesystem::path path;
  std::filesystem::path temporary;
  ErrorKind kind;
  FileDescriptor file;
  Hasher hasher;
  int64_t bytes = 0;
  int64_t flushing = 0;  ///< up to here the kernel was told to write
  int64_t dropped = 0;   ///< up to here the pages were dropped

  void flush() {
#ifdef SYNC_FILE_RANGE_WRITE
    if (bytes - flushing < kFlushBytes) return;
    if (flushing > dropped) {
      // Waiting for the piece before the last keeps the disk busy with the last one.
      ::sync_file_range(file.get(), dropped, flushing - dropped,
                        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
      ::posix_fadvise(file.get(), dropped, flushing - dropped, POSIX_FADV_DONTNEED);
      dropped = flushing;
    }
    ::sync_file_range(file.get(), flushing, bytes - flushing, SYNC_FILE_RANGE_WRITE);
    flushing = bytes;
#endif
  }
};

StreamedFile::StreamedFile(std::filesystem::path path, int64_t expected_bytes, ErrorKind kind)
    : state_(std::make_unique<State>()) {
  state_->path = std::move(path);
  state_->temporary = state_->path.string() + ".partial";
  state_->kind = kind;
  state_->file = FileDescriptor(::open(state_->temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!state_->file) fail(kind, "create", state_->path, errno);
#ifdef FALLOC_FL_KEEP_SIZE
  // Not posix_fallocate: where the file system cannot reserve, that would write zeros over the whole length.
  if (expected_bytes > 0 && ::fallocate(state_->file.get(), FALLOC_FL_KEEP_SIZE, 0, expected_bytes) != 0) {
    const int code = errno;
    if (code == ENOSPC || code == EDQUOT) {
      ::unlink(state_->temporary.c_str());
      fail(kind, "reserve", state_->path, code);
    }
  }
#else
  (void)expected_bytes;
#endif
}

StreamedFile::StreamedFile(StreamedFile&&) noexcept = default;

StreamedFile::~StreamedFile() {
  if (state_ && state_->file) ::unlink(state_->temporary.c_str());
}

void StreamedFile::append(std::span<const std::byte> bytes) {
  write_all(state_->file.get(), {reinterpret_cast<const char*>(bytes.data()), bytes.size()}, state_->path,
            state_->kind);
  state_->hasher.update(bytes);
  state_->bytes += static_cast<int64_t>(bytes.size());
  state_->flush();
}

int64_t StreamedFile::bytes() const {
  return state_->bytes;
}

StreamedFile::Finished StreamedFile::finish() {
  State& s = *state_;
  if (::fsync(s.file.get()) != 0) fail(s.kind, "write", s.path, errno);
  ::posix_fadvise(s.file.get(), 0, 0, POSIX_FADV_DONTNEED);
  if (::rename(s.temporary.c_str(), s.path.c_str()) != 0) fail(s.kind, "rename", s.path, errno);
  s.file.close();
  sync_folder(s.path.parent_path(), s.kind);
  return {s.bytes, s.hasher.finish_hex()};
}

}  // namespace tandem
