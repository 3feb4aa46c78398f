// Packs that are folders already: nothing to download, only to check.
#include <algorithm>
#include <string>

#include "orchestrator/fetch/content_hash.h"
#include "orchestrator/fetch/fetch.h"
#include "orchestrator/fetch/file_check.h"
#include "orchestrator/fetch/url.h"
#include "runtime/common/error.h"

namespace tandem {

namespace fs = std::filesystem;

namespace {

/// What there is to serve when nobody said what there should be: the regular files, links followed.
std::vector<HubFile> files_of(const fs::path& folder) {
  std::vector<HubFile> files;
  std::error_code failed;
  for (fs::recursive_directory_iterator it(folder, failed), end; !failed && it != end; it.increment(failed)) {
    std::error_code ignored;
    if (!fs::is_regular_file(it->path(), ignored)) continue;
    HubFile file;
    file.path = it->path().lexically_relative(folder).generic_string();
    file.size = static_cast<int64_t>(fs::file_size(it->path(), ignored));
    files.push_back(std::move(file));
    if (static_cast<int64_t>(files.size()) > kMaxHubFiles) break;
  }
  if (failed)
    throw Error(ErrorKind::fetch, "the folder cannot be read: " + failed.message(), printable(folder.string()));
  std::sort(files.begin(), files.end(), [](const HubFile& a, const HubFile& b) { return a.path < b.path; });
  return files;
}

}  // namespace

FetchResult verify_folder(const fs::path& folder, const std::vector<HubFile>& expected,
                          const FetchCallback& on_progress, const std::atomic<bool>* cancel) {
  const auto start = std::chrono::steady_clock::now();
  std::error_code failed;
  if (!fs::is_directory(folder, failed)) {
    throw Error(ErrorKind::fetch, "no such folder", printable(folder.string()),
                "check `pack.path` in the recipe or cluster file");
  }
  FetchResult result;
  result.snapshot = folder;
  result.files = expected.empty() ? files_of(folder) : expected;
  if (result.files.empty()) {
    throw Error(ErrorKind::fetch, "the folder holds no files", printable(folder.string()),
                "check `pack.path` in the recipe or cluster file");
  }
  for (const HubFile& file : result.files) {
    check_file_path(file.path);
    result.bytes_total += file.size;
  }
  FetchProgress progress;
  progress.phase = FetchProgress::Phase::verifying;
  progress.files_total = static_cast<int64_t>(result.files.size());
  progress.bytes_total = result.bytes_total;
  for (const HubFile& file : expected) {
    progress.file = file.path;
    const std::string wrong = file_mismatch(folder / file.path, file, cancel, [&](int64_t bytes) {
      progress.bytes_done += bytes;
      if (on_progress) on_progress(progress);
    });
    if (!wrong.empty()) {
      throw Error(ErrorKind::fetch, printable(file.path, 200) + " is not the file that was expected: " + wrong,
                  printable((folder / file.path).string(), 500), "copy the pack again, or correct the lock file");
    }
    ++progress.files_done;
  }
  result.bytes_reused = result.bytes_total;
  result.elapsed = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start);
  progress.phase = FetchProgress::Phase::done;
  progress.bytes_done = progress.bytes_total;
  progress.files_done = progress.files_total;
  if (on_progress) on_progress(progress);
  return result;
}

PackUrl parse_pack_url(const std::string& text) {
  PackUrl result;
  if (text.rfind("file://", 0) == 0) {
    const std::string path = percent_decode(std::string_view(text).substr(7));
    if (path.empty() || path.front() != '/' || path.find('\0') != std::string::npos) {
      throw Error(ErrorKind::fetch, "a file address needs an absolute path", printable(text, 300),
                  "write it as file:///folder/of/the/pack");
    }
    result.folder = path;
    return result;
  }
  const Url url = parse_url(text);
  std::string path = percent_decode(url.target.substr(0, url.target.find('?')));
  while (!path.empty() && path.back() == '/') path.pop_back();
  const auto name = path.rfind('/');
  const auto organisation = name == std::string::npos || name == 0 ? std::string::npos : path.rfind('/', name - 1);
  if (name == std::string::npos || path.size() == 1) {
    throw Error(ErrorKind::fetch, "the address names no repository", url.display(),
                "write it as http://host:port/org/name");
  }
  const size_t cut = organisation == std::string::npos ? name : organisation;
  result.repo = path.substr(cut + 1);
  result.endpoint = url.origin() + percent_encode(path.substr(0, cut), true);
  check_repo_id(result.repo);
  return result;
}

}  // namespace tandem
