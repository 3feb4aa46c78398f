#include "orchestrator/split/partial_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <system_error>

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr const char* kJournalName = "split.journal";
constexpr int64_t kMaxJournalBytes = 16 << 20;

[[noreturn]] void fail(const std::string& doing, const fs::path& path, int code) {
  throw Error(ErrorKind::split, "cannot " + doing + ": " + std::generic_category().message(code), path.string());
}

/// "<sha256> <bytes> <name>", or nothing when a kill cut the line short.
std::optional<ManifestFile> parse_line(std::string_view line) {
  constexpr size_t kHexDigits = 64;
  if (line.size() < kHexDigits + 4 || line[kHexDigits] != ' ') return std::nullopt;
  ManifestFile file{.sha256 = std::string(line.substr(0, kHexDigits))};
  line.remove_prefix(kHexDigits + 1);
  const auto [end, code] = std::from_chars(line.data(), line.data() + line.size(), file.bytes);
  const auto digits = static_cast<size_t>(end - line.data());
  if (code != std::errc() || digits + 1 >= line.size() || line[digits] != ' ') return std::nullopt;
  file.name = line.substr(digits + 1);
  return file;
}

std::string journal_line(const ManifestFile& file) {
  return file.sha256 + " " + std::to_string(file.bytes) + " " + file.name + "\n";
}

}  // namespace

PartialFolder::PartialFolder(fs::path final_path, std::string identity)
    : final_path_(std::move(final_path)), path_(final_path_.string() + ".partial"), identity_(std::move(identity)) {
  lock();
  load_journal();
}

void PartialFolder::lock() {
  for (;;) {
    make_folders(path_, ErrorKind::split);
    handle_ = FileDescriptor(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!handle_ && errno == ENOENT) continue;  // published by another process between the two calls
    if (!handle_) fail("open the folder", path_, errno);
    if (::flock(handle_.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) fail("lock the folder", path_, errno);
      throw Error(ErrorKind::split, "another process is splitting this rank", path_.string(),
                  "wait for it, or stop it and run the command again");
    }
    // The folder we locked may have been published since we opened it.
    struct stat mine {
    }, current{};
    if (::fstat(handle_.get(), &mine) == 0 && ::stat(path_.c_str(), &current) == 0 && mine.st_ino == current.st_ino &&
        mine.st_dev == current.st_dev)
      return;
  }
}

void PartialFolder::load_journal() {
  const fs::path journal = path_ / kJournalName;
  std::string text;
  std::error_code code;
  if (fs::exists(journal, code)) text = read_small_file(journal, kMaxJournalBytes, ErrorKind::split);
  std::string valid = identity_ + "\n";
  if (text.starts_with(valid)) {
    for (size_t at = valid.size(), end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
      auto file = parse_line(std::string_view(text).substr(at, end - at));
      if (!file) break;
      const auto bytes = fs::file_size(path_ / file->name, code);
      if (code || static_cast<int64_t>(bytes) != file->bytes) continue;
      valid += journal_line(*file);
      finished_[file->name] = std::move(*file);
    }
  }
  // Whatever the journal does not vouch for is half a file, or of another pack.
  for (const fs::directory_entry& entry : fs::directory_iterator(path_, code)) {
    const std::string name = entry.path().filename().string();
    if (name != kJournalName && !finished_.contains(name)) fs::remove_all(entry.path(), code);
  }
  if (text != valid) write_file_atomic(journal, valid, ErrorKind::split);
}

std::optional<ManifestFile> PartialFolder::find(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto it = finished_.find(name);
  return it == finished_.end() ? std::nullopt : std::optional(it->second);
}

void PartialFolder::add(const ManifestFile& file) {
  const std::lock_guard lock(mutex_);
  const fs::path journal = path_ / kJournalName;
  const FileDescriptor handle(::open(journal.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  const std::string line = journal_line(file);
  if (!handle || ::write(handle.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size()) ||
      ::fdatasync(handle.get()) != 0)
    fail("write the journal", journal, errno);
  finished_[file.name] = file;
}

int64_t PartialFolder::finished_bytes() const {
  int64_t sum = 0;
  for (const auto& [_, file] : finished_) sum += file.bytes;
  return sum;
}

void PartialFolder::discard() {
  std::error_code code;
  fs::remove_all(path_, code);
}

void PartialFolder::publish() {
  std::error_code code;
  const fs::path old = final_path_.string() + ".old";
  fs::remove_all(old, code);
  if (fs::exists(fs::symlink_status(final_path_, code)) && ::rename(final_path_.c_str(), old.c_str()) != 0)
    fail("move the old rank folder away", final_path_, errno);
  if (::rename(path_.c_str(), final_path_.c_str()) != 0) fail("rename the folder", path_, errno);
  sync_folder(final_path_.parent_path(), ErrorKind::split);
  fs::remove_all(old, code);
  remove_left_journal(final_path_);
}

void remove_left_journal(const fs::path& rank_folder) {
  std::error_code code;
  fs::remove(rank_folder / kJournalName, code);
}

}  // namespace tandem
