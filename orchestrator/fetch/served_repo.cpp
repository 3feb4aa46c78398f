#include "orchestrator/fetch/served_repo.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <span>

#include "orchestrator/fetch/cache.h"
#include "orchestrator/fetch/cache_layout.h"
#include "orchestrator/fetch/content_hash.h"
#include "runtime/common/error.h"
#include "runtime/common/file.h"
#include "runtime/common/hash.h"
#include "runtime/common/log.h"

namespace tandem {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kHashPiece = 4 << 20;
/// Like the hub: large files and weights are in LFS and have a sha256, small ones have git's hash.
constexpr int64_t kLargeFile = 1 << 20;

FileStamp stamp_from(const struct stat& info) {
  return {static_cast<uint64_t>(info.st_dev), static_cast<uint64_t>(info.st_ino), static_cast<int64_t>(info.st_size),
          static_cast<int64_t>(info.st_mtim.tv_sec) * 1'000'000'000 + info.st_mtim.tv_nsec};
}

bool is_hex(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool inside(const fs::path& path, const fs::path& folder) {
  const auto [end, rest] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return end == folder.end() && rest != path.end();
}

/// A commit for a folder: equal content under equal names, wherever it lies, has an equal commit.
std::string folder_commit(const std::vector<ServedFile>& files) {
  Hasher hasher(HashKind::sha1);
  for (const ServedFile& served : files) {
    hasher.update(served.file.path + std::string(1, '\0') + std::to_string(served.file.size) + " " +
                  served.file.etag() + "\n");
  }
  return hasher.finish_hex();
}

}  // namespace

FileStamp stamp_of(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) ? stamp_from(info) : FileStamp{};
}

ServedRepo::ServedRepo(Kind kind, fs::path folder) : kind_(kind), folder_(std::move(folder)) {}

ServedRepo::~ServedRepo() = default;

std::string ServedRepo::snapshot_commit(const std::string& revision) const {
  std::error_code ignored;
  const RepoFolder repo{"", folder_};
  if (is_commit(revision)) return fs::is_directory(repo.snapshot(revision), ignored) ? revision : "";
  for (const auto& [name, commit] : repo.refs()) {
    if (name == revision && fs::is_directory(repo.snapshot(commit), ignored)) return commit;
  }
  return "";
}

std::vector<ServedFile> ServedRepo::scan(const fs::path& top, const fs::path& boundary) const {
  std::vector<ServedFile> files;
  std::error_code failed;
  for (fs::recursive_directory_iterator it(top, fs::directory_options::skip_permission_denied, failed), end;
       !failed && it != end; it.increment(failed)) {
    std::error_code ignored;
    const std::string name = it->path().filename().string();
    if (it->is_directory(ignored) && !it->is_symlink(ignored)) {
      if (name.front() == '.') it.disable_recursion_pending();  // .git, .cache: not part of the pack
      continue;
    }
    ServedFile served;
    served.place = fs::canonical(it->path(), ignored);
    struct stat info {};
    if (ignored || ::stat(served.place.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    if (!inside(served.place, boundary)) {
      log_warn("not served: a link leads out of the pack", {{"path", it->path().string()}});
      continue;
    }
    served.stamp = stamp_from(info);
    served.file.path = it->path().lexically_relative(top).generic_string();
    served.file.size = served.stamp.size;
    if (name.size() > kIncompleteSuffix.size() && (name.ends_with(kIncompleteSuffix) || name.ends_with(kJournalSuffix)))
      continue;
    try {
      check_file_path(served.file.path);
    } catch (const Error& error) {
      log_warn("not served: no file name for a pack", {{"path", it->path().string()}});
      continue;
    }
    // The cache names contents by their hash; the client checks it anyway.
    if (kind_ == Kind::cache && served.place.parent_path() == folder_ / "blobs") {
      const std::string blob = served.place.filename().string();
      if (blob.size() == 64 && is_hex(blob)) served.file.sha256 = blob;
      if (blob.size() == 40 && is_hex(blob)) served.file.git_sha1 = blob;
    }
    files.push_back(std::move(served));
    if (static_cast<int64_t>(files.size()) > kMaxHubFiles) break;
  }
  std::sort(files.begin(), files.end(),
            [](const ServedFile& a, const ServedFile& b) { return a.file.path < b.file.path; });
  return files;
}

bool ServedRepo::all_hashed(std::vector<ServedFile>& files) const {
  bool all = true;
  for (ServedFile& served : files) {
    if (!served.file.etag().empty()) continue;
    const auto known = hashed_.find(served.place);
    if (known != hashed_.end() && known->second.stamp == served.stamp) {
      served.file.sha256 = known->second.file.sha256;
      served.file.git_sha1 = known->second.file.git_sha1;
    } else {
      all = false;
    }
  }
  return all;
}

ServedRepo::Answer ServedRepo::find(const std::string& revision, std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  std::string commit;
  fs::path top = folder_;
  if (kind_ == Kind::cache) {
    commit = snapshot_commit(revision);
    if (commit.empty()) return {State::no_revision, nullptr, "no such revision in this cache"};
    const RepoFolder repo{"", folder_};
    top = repo.snapshot(commit);
    // Half a snapshot looks like a whole one to whoever asks for its list.
    if (const auto list = repo.load_list(commit)) {
      for (const HubFile& file : *list) {
        if (!repo.has_file(commit, file))
          return {State::no_revision, nullptr, "this cache has only a part of that commit"};
      }
    }
  } else if (revision.size() != 40 && revision != "main") {
    return {State::no_revision, nullptr, "a folder has one revision: main"};
  }

  while (true) {
    std::vector<ServedFile> files = scan(top, folder_);
    std::unique_lock lock(mutex_);
    if (all_hashed(files)) {
      if (kind_ == Kind::folder) commit = folder_commit(files);
      if (is_commit(revision) && revision != commit)
        return {State::no_revision, nullptr, "the folder now has commit " + commit};
      auto listing = std::make_shared<Listing>();
      listing->commit = commit;
      for (ServedFile& served : files) listing->files.emplace(served.file.path, std::move(served));
      return {State::ready, std::move(listing), ""};
    }
    if (!hashing_) {
      hashing_ = true;
      hashed_bytes_ = bytes_to_hash_ = 0;
      for (const ServedFile& served : files) bytes_to_hash_ += served.file.etag().empty() ? served.file.size : 0;
      hasher_ = std::jthread([this, files](const std::stop_token& stop) { hash_all(stop, files); });
    }
    if (!changed_.wait_until(lock, deadline, [&] { return !hashing_; })) {
      const int64_t percent = bytes_to_hash_ == 0 ? 0 : hashed_bytes_ * 100 / bytes_to_hash_;
      return {State::hashing, nullptr, "the mirror is still hashing its files (" + std::to_string(percent) + " %)"};
    }
    if (std::chrono::steady_clock::now() >= deadline) return {State::hashing, nullptr, "the files change all the time"};
  }
}

void ServedRepo::hash_all(const std::stop_token& stop, std::vector<ServedFile> files) {
  std::string piece;
  for (ServedFile& served : files) {
    if (!served.file.etag().empty()) continue;
    const bool large = served.file.size >= kLargeFile || served.file.path.ends_with(".safetensors");
    Hasher hasher(large ? HashKind::sha256 : HashKind::sha1);
    if (!large) hasher.update("blob " + std::to_string(served.file.size) + std::string(1, '\0'));
    try {
      const FileDescriptor file = open_for_reading(served.place, ErrorKind::fetch);
      if (stamp_of(file.get()) != served.stamp) continue;  // the next scan sees the new one
      for (int64_t offset = 0; offset < served.file.size && !stop.stop_requested(); offset += kHashPiece) {
        piece.resize(static_cast<size_t>(std::min(kHashPiece, served.file.size - offset)));
        read_exactly(file, offset, std::as_writable_bytes(std::span(piece)), served.place, ErrorKind::fetch);
        hasher.update(piece);
        std::lock_guard lock(mutex_);
        hashed_bytes_ += static_cast<int64_t>(piece.size());
      }
    } catch (const Error& error) {
      log_warn("a file of the mirror cannot be read", {{"path", served.place.string()}, {"why", error.what()}});
      continue;
    }
    if (stop.stop_requested()) break;
    (large ? served.file.sha256 : served.file.git_sha1) = hasher.finish_hex();
    std::lock_guard lock(mutex_);
    hashed_[served.place] = served;
  }
  std::lock_guard lock(mutex_);
  hashing_ = false;
  changed_.notify_all();
}

}  // namespace tandem
