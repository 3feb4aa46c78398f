#include "orchestrator/fetch/file_check.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <span>

#include "orchestrator/fetch/content_hash.h"
#include "runtime/common/error.h"
#include "runtime/common/file.h"

namespace tandem {

std::string file_mismatch(const std::filesystem::path& path, const HubFile& expected, const std::atomic<bool>* cancel,
                          const std::function<void(int64_t)>& on_bytes) {
  constexpr int64_t kPiece = 4 << 20;
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return "absent";
  if (info.st_size != expected.size) {
    return "has " + std::to_string(info.st_size) + " bytes, expected " + std::to_string(expected.size);
  }
  if (expected.sha256.empty() && expected.git_sha1.empty()) {
    on_bytes(expected.size);
    return "";
  }
  const FileDescriptor file = open_for_reading(path, ErrorKind::fetch);
  ContentHash hash(expected);
  std::string piece;
  for (int64_t offset = 0; offset < expected.size; offset += kPiece) {
    if (cancel != nullptr && *cancel) {
      throw Error(ErrorKind::interrupted, "interrupted while checking a file", printable(path.string(), 500));
    }
    piece.resize(static_cast<size_t>(std::min(kPiece, expected.size - offset)));
    read_exactly(file, offset, std::as_writable_bytes(std::span(piece)), path, ErrorKind::fetch);
    hash.update(piece);
    on_bytes(static_cast<int64_t>(piece.size()));
  }
  return hash.mismatch();
}

}  // namespace tandem
