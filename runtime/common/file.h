#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "runtime/common/error.h"
#include "runtime/common/hash.h"

namespace tandem {

/// Owns a file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor() { close(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release();
  void close();

 private:
  int fd_ = -1;
};

/// Opens for reading; refuses anything but a regular file (a FIFO would block, a folder is no file).
/// @throws Error  of `kind`, naming the path and the reason
FileDescriptor open_for_reading(const std::filesystem::path& path, ErrorKind kind);

int64_t file_bytes(const FileDescriptor& file, const std::filesystem::path& path, ErrorKind kind);

/// Reads exactly buffer.size() bytes at `offset`; a file that ends before is an Error of `kind`.
void read_exactly(const FileDescriptor& file, int64_t offset, std::span<std::byte> buffer,
                  const std::filesystem::path& path, ErrorKind kind);

/// The whole of a small file. @throws Error of `kind` when it is missing, unreadable or over `max_bytes`
std::string read_small_file(const std::filesystem::path& path, int64_t max_bytes, ErrorKind kind);

/// Replaces `path` by `text` in one step: readers see the old file or the new one, also after a crash.
/// Safe with several writers (the last one wins). @throws Error of `kind`
void write_file_atomic(const std::filesystem::path& path, std::string_view text, ErrorKind kind);

/// Makes names in a folder survive a crash (fsync of the folder itself).
void sync_folder(const std::filesystem::path& folder, ErrorKind kind);

/// Creates a folder and its parents. @throws Error of `kind`
void make_folders(const std::filesystem::path& folder, ErrorKind kind);

/// Bytes this user can still write on the file system of `path` (or of its nearest parent that exists).
int64_t free_disk_bytes(const std::filesystem::path& path, ErrorKind kind);

/// A read-only mapping of a whole file. The file must not shrink while it is mapped (SIGBUS).
class MappedFile {
 public:
  MappedFile() = default;
  MappedFile(const std::filesystem::path& path, ErrorKind kind);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// A large file written front to back under a temporary name and renamed when whole.
/// Hashes while writing, and hands written pages back to the kernel as it goes, so that a copy of 100 GB does not push
/// everything else (a model served from the same memory, for one) out of the page cache.
/// One writer a path; the temporary name is always "<path>.partial", so a later run overwrites what a kill left.
class StreamedFile {
 public:
  struct Finished {
    int64_t bytes = 0;
    std::string sha256;
  };

  /// @param expected_bytes  reserved at once where the file system can, so that a full disk shows before the work; 0 =
  /// unknown
  /// @throws Error  of `kind`, here and in all calls below; a full disk is named as such
  StreamedFile(std::filesystem::path path, int64_t expected_bytes, ErrorKind kind);
  StreamedFile(StreamedFile&&) noexcept;
  ~StreamedFile();  ///< removes the temporary file unless finished

  void append(std::span<const std::byte> bytes);
  int64_t bytes() const;
  Finished finish();  ///< flushes, syncs, renames

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem
