#include "orchestrator/fetch/file_io.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "runtime/common/log.h"

namespace tandem {

namespace fs = std::filesystem;

Error cache_file_error(const std::string& doing, const fs::path& path, int code) {
  const std::string where = printable(path.string(), 500);
  const auto error = [&](const std::string& what, const std::string& fix) {
    return Error(ErrorKind::fetch, what, where, fix);
  };
  switch (code) {
    case ENOSPC:
      return error("no space left on the disk while " + doing,
                   "free some space (`tandem cache` lists what is there), then run it again: finished ranges are kept");
    case EDQUOT:
    case EFBIG:
      return error("a quota or file size limit was reached while " + doing,
                   "raise the limit or free some space, then run it again: finished ranges are kept");
    case EACCES:
    case EPERM:
      return error(
          "no permission for " + doing,
          "make the folder yours (another user may have created it), or set HF_HUB_CACHE to a folder of yours");
    case EROFS:
      return error("the file system is read-only: " + doing, "set HF_HUB_CACHE to a folder that can be written");
    case EIO:
      return error("the disk reports an error while " + doing,
                   "look at the kernel's log (dmesg): the disk may be failing");
    default:
      return error(doing + " failed: " + std::generic_category().message(code), "");
  }
}

FileDescriptor open_cache_file(const fs::path& path, int flags) {
  FileDescriptor file(::open(path.c_str(), flags | O_CLOEXEC, 0644));
  if (!file) throw cache_file_error("opening a file", path, errno);
  return file;
}

void write_at(const FileDescriptor& file, const fs::path& path, std::string_view data, int64_t offset) {
  while (!data.empty()) {
    const ssize_t written = pwrite(file.get(), data.data(), data.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw cache_file_error("writing", path, errno);
    data.remove_prefix(static_cast<size_t>(written));
    offset += written;
  }
}

void sync_data(const FileDescriptor& file, const fs::path& path) {
  if (fdatasync(file.get()) != 0) throw cache_file_error("writing", path, errno);
}

void rename_file(const fs::path& from, const fs::path& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) throw cache_file_error("renaming a file", to, errno);
}

void remove_quietly(const fs::path& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    log_warn("could not remove a file", {{"path", path.string()}, {"why", std::generic_category().message(errno)}});
  }
}

void replace_cache_file(const fs::path& path, std::string_view content) {
  const fs::path beside = path.string() + std::string(kIncompleteSuffix);
  {
    const FileDescriptor file = open_cache_file(beside, O_WRONLY | O_CREAT | O_TRUNC);
    write_at(file, beside, content, 0);
    sync_data(file, beside);
  }
  rename_file(beside, path);
  sync_folder(path.parent_path(), ErrorKind::fetch);
}

std::string read_if_small(const fs::path& path, int64_t max_bytes) {
  try {
    return read_small_file(path, max_bytes, ErrorKind::fetch);
  } catch (const Error&) {
    return "";
  }
}

}  // namespace tandem
