#include "orchestrator/fetch/fetch.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <thread>

#include "orchestrator/fetch/cache.h"
#include "orchestrator/fetch/download.h"
#include "orchestrator/fetch/file_check.h"
#include "orchestrator/fetch/progress.h"
#include "runtime/common/log.h"
#include "runtime/common/units.h"

namespace tandem {

namespace fs = std::filesystem;

namespace {

using std::chrono::steady_clock;

void check_options(const FetchOptions& options) {
  check_repo_id(options.repo);
  check_revision(options.revision);
  if (options.range_bytes < 4096 || options.range_bytes % 64 != 0) {
    throw Error(ErrorKind::usage,
                "range size " + std::to_string(options.range_bytes) + " must be a multiple of 64, at least 4096");
  }
  if (options.parallel < 1 || options.parallel > 64) {
    throw Error(ErrorKind::usage, std::to_string(options.parallel) + " connections: must be 1 to 64");
  }
  if (options.reserve_bytes < 0) throw Error(ErrorKind::usage, "the disk reserve must not be negative");
}

/// One fetch at a time for a repository. The lock is on the folder itself, so no lock file stays behind, and it
/// ends with the process, however that ends.
class RepoLock {
 public:
  /// @param on_wait  called about ten times a second while another process has it
  RepoLock(const fs::path& folder, const std::atomic<bool>* cancel, const std::function<void()>& on_wait)
      : handle_(open_cache_file(folder, O_RDONLY | O_DIRECTORY)) {
    while (::flock(handle_.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) {
        log_warn("the file system has no locks: do not run two fetches at the same time", {{"path", folder.string()}});
        return;
      }
      if (cancel != nullptr && *cancel)
        throw Error(ErrorKind::interrupted, "interrupted while waiting for another fetch");
      on_wait();
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

 private:
  FileDescriptor handle_;
};

class Fetch {
 public:
  Fetch(const FetchOptions& options, const FetchCallback& on_progress, const std::atomic<bool>* cancel)
      : options_(options),
        on_progress_(on_progress),
        cancel_(cancel),
        folder_(repo_folder(options.cache.empty() ? hub_cache_dir() : options.cache, options.repo)) {
    result_.repo = options.repo;
  }

  FetchResult run() {
    report();
    if (find_commit_and_list() == Found::nothing_to_do) return finished();
    prepare_folders();
    const RepoLock lock(folder_.path, cancel_, [&] {
      progress_.phase = FetchProgress::Phase::waiting_for_lock;
      report();
    });
    sort_out_what_is_there();
    download();
    link();
    clean_up();
    // Last, because a run that finds this list and its files does not look any further.
    if (!listed_.empty()) folder_.save_list(result_.commit, listed_);
    return finished();
  }

 private:
  enum class Found { nothing_to_do, work };

  /// Which commit, which files. Asks the network only for what the cache cannot answer.
  Found find_commit_and_list() {
    if (is_commit(options_.revision)) {
      result_.commit = options_.revision;
      if (use_local_list()) return Found::nothing_to_do;
    }
    if (options_.offline) return only_local();

    HubClient hub(options_.hub, cancel_);
    if (result_.commit.empty()) {
      result_.commit = hub.resolve_commit(options_.repo, options_.revision);
      if (use_local_list() && branch_is_noted()) return Found::nothing_to_do;
    }
    listed_ = hub.list_files(options_.repo, result_.commit);
    select(listed_);
    return Found::work;
  }

  /// True when the cache holds all wanted files of the commit, as far as its saved list (or the lock file) says.
  bool use_local_list() {
    const auto saved = folder_.load_list(result_.commit);
    if (!saved && options_.expected.empty()) return false;
    select(saved ? *saved : options_.expected);
    if (options_.verify) return false;
    return std::all_of(result_.files.begin(), result_.files.end(),
                       [&](const HubFile& file) { return folder_.has_file(result_.commit, file); });
  }

  bool branch_is_noted() const {
    const auto refs = folder_.refs();
    return std::find(refs.begin(), refs.end(), std::pair(options_.revision, result_.commit)) != refs.end();
  }

  Found only_local() {
    const fs::path cache = folder_.path.parent_path();
    const auto snapshot = find_snapshot(cache, options_.repo, options_.revision);
    if (!snapshot) {
      throw Error(ErrorKind::fetch, "the cache has no " + options_.repo + " at " + options_.revision,
                  printable(cache.string(), 500), "run it once without --offline");
    }
    result_.commit = snapshot->commit;
    if (use_local_list()) return Found::nothing_to_do;
    if (result_.files.empty()) {
      throw Error(ErrorKind::fetch,
                  "the cache has commit " + result_.commit + ", but no list that says whether it is whole",
                  printable(snapshot->path.string(), 500), "run it once without --offline, or give a lock file");
    }
    std::string missing;
    for (const HubFile& file : result_.files) {
      if (missing.empty() && !folder_.has_file(result_.commit, file)) missing = file.path;
    }
    if (missing.empty()) return Found::work;  // only --verify is left to do
    throw Error(ErrorKind::fetch, "the cached copy is not whole: " + printable(missing, 200) + " is missing",
                printable(snapshot->path.string(), 500), "run it without --offline");
  }

  /// result_.files = what of `list` is wanted, held against the lock file.
  void select(const std::vector<HubFile>& list) {
    if (!options_.expected.empty()) check_file_list(options_.expected);
    std::map<std::string, HubFile> wanted;
    for (const HubFile& file : list) wanted.emplace(file.path, file);

    std::vector<HubFile> files;
    for (const HubFile& locked : options_.expected) {
      const auto listed = wanted.find(locked.path);
      if (listed == wanted.end()) throw differs(locked, "is not in the repository");
      HubFile& file = listed->second;
      if (file.size != locked.size) {
        throw differs(locked,
                      "has " + std::to_string(file.size) + " bytes, the lock file says " + std::to_string(locked.size));
      }
      if (!file.sha256.empty() && !locked.sha256.empty() && file.sha256 != locked.sha256) {
        throw differs(locked, "has sha256 " + file.sha256 + ", the lock file says " + locked.sha256);
      }
      if (!file.git_sha1.empty() && !locked.git_sha1.empty() && file.git_sha1 != locked.git_sha1) {
        throw differs(locked, "has git sha1 " + file.git_sha1 + ", the lock file says " + locked.git_sha1);
      }
      if (file.sha256.empty()) file.sha256 = locked.sha256;
      files.push_back(file);
    }
    if (options_.expected.empty()) files = list;
    if (!options_.include.empty()) {
      std::erase_if(files, [&](const HubFile& file) {
        return std::none_of(options_.include.begin(), options_.include.end(), [&](const std::string& pattern) {
          return fnmatch(pattern.c_str(), file.path.c_str(), 0) == 0;
        });
      });
    }
    if (files.empty()) {
      throw Error(ErrorKind::fetch,
                  list.empty() ? "the repository has no files" : "no file of the repository matches --include",
                  options_.repo + " at " + result_.commit, "look at " + repo_page(options_.hub, options_.repo));
    }
    result_.files = std::move(files);
    result_.bytes_total = 0;
    for (const HubFile& file : result_.files) result_.bytes_total += file.size;
    progress_.bytes_total = result_.bytes_total;
    progress_.files_total = static_cast<int64_t>(result_.files.size());
  }

  Error differs(const HubFile& locked, const std::string& how) const {
    return Error(ErrorKind::fetch, printable(locked.path, 200) + " " + how, options_.repo + " at " + result_.commit,
                 "if the change is wanted, write the lock file again with `tandem lock`");
  }

  void prepare_folders() {
    try {
      make_folders(folder_.blobs(), ErrorKind::fetch);
    } catch (const Error& error) {
      throw Error(ErrorKind::fetch, error.what(), error.where(),
                  "make the folder writable for this user, or set HF_HUB_CACHE to another one");
    }
  }

  void sort_out_what_is_there() {
    std::set<std::string> seen;  // two paths with one content share a blob
    progress_.phase = options_.verify ? FetchProgress::Phase::verifying : FetchProgress::Phase::downloading;
    for (const HubFile& file : result_.files) {
      const fs::path place = folder_.has_blob(file) ? folder_.blob(file) : folder_.snapshot(result_.commit) / file.path;
      const bool there = folder_.has_blob(file) || folder_.has_file(result_.commit, file);
      if (there && (!options_.verify || is_right(place, file))) {
        present_bytes_ += file.size;
        ++present_files_;
      } else if (seen.insert(file.etag()).second) {
        missing_.push_back(file);
      } else {
        present_bytes_ += file.size;  // arrives with its twin
        ++present_files_;
      }
    }
    result_.bytes_reused = present_bytes_;
  }

  bool is_right(const fs::path& place, const HubFile& file) {
    progress_.file = file.path;
    const std::string wrong = file_mismatch(place, file, cancel_, [&](int64_t bytes) {
      progress_.bytes_done += bytes;
      report();
    });
    if (wrong.empty()) return true;
    log_warn("a cached file is damaged and will be downloaded again", {{"path", place.string()}, {"why", wrong}});
    if (options_.offline) {
      throw Error(ErrorKind::fetch, "the cached " + printable(file.path, 200) + " is damaged: " + wrong,
                  printable(place.string(), 500), "run it without --offline: it is then downloaded again");
    }
    return false;
  }

  void download() {
    if (missing_.empty()) return;
    DownloadJob job{
        options_.hub, options_.repo,     result_.commit,      is_commit(options_.revision) ? "" : options_.revision,
        missing_,     options_.parallel, options_.range_bytes};
    Downloader downloader(folder_, std::move(job), cancel_);
    check_space(downloader.missing_disk_bytes());
    result_.bytes_reused += downloader.resumed_bytes();

    progress_.phase = FetchProgress::Phase::downloading;
    RateMeter total_rate;
    const auto show = [&](const DownloadStatus& status) {
      total_rate.add(steady_clock::now(), status.network_bytes);
      progress_.bytes_done = present_bytes_ + status.bytes_done;
      progress_.files_done = present_files_ + status.files_done;
      progress_.file = status.file;
      progress_.file_bytes_done = status.file_bytes_done;
      progress_.file_bytes_total = status.file_bytes_total;
      progress_.bytes_per_second = total_rate.bytes_per_second();
      progress_.remaining = total_rate.time_for(progress_.bytes_total - progress_.bytes_done);
      progress_.file_remaining = total_rate.time_for(status.file_bytes_total - status.file_bytes_done);
      progress_.message = status.message;
      report();
    };
    downloader.run(show);
    const DownloadStatus status = downloader.status();
    result_.bytes_downloaded = status.network_bytes;
    result_.requests = status.requests;
    result_.retries = status.retries;
  }

  /// What is still missing plus the reserve must fit on the file system that will hold it.
  void check_space(int64_t needed) const {
    const int64_t free_bytes = free_disk_bytes(folder_.path, ErrorKind::fetch);
    if (needed <= free_bytes - options_.reserve_bytes) return;
    throw Error(ErrorKind::fetch,
                "not enough disk space: " + format_bytes(needed) + " are still to be written and " +
                    format_bytes(options_.reserve_bytes) + " must stay free, but only " + format_bytes(free_bytes) +
                    " are free",
                printable(folder_.path.string(), 500),
                "free " + format_bytes(needed + options_.reserve_bytes - free_bytes) +
                    " (`tandem cache` lists what is there), or set HF_HUB_CACHE to a folder on a larger disk");
  }

  /// Only now do the files get their names: a snapshot that appears is whole.
  void link() {
    const fs::path snapshot = folder_.snapshot(result_.commit);
    for (const HubFile& file : result_.files) {
      if (!folder_.has_blob(file)) continue;  // some tools put the file itself into the snapshot
      const fs::path name = snapshot / file.path;
      make_folders(name.parent_path(), ErrorKind::fetch);
      fs::path target = "../..";  // from snapshots/<commit>/ to the repository's folder
      for (auto depth = std::count(file.path.begin(), file.path.end(), '/'); depth > 0; --depth) target /= "..";
      set_link(target / "blobs" / file.etag(), name);
    }
    if (!is_commit(options_.revision) && result_.commit.rfind(options_.revision, 0) != 0) {
      make_folders(folder_.ref(options_.revision).parent_path(), ErrorKind::fetch);
      replace_cache_file(folder_.ref(options_.revision), result_.commit);
    }
  }

  static void set_link(const fs::path& target, const fs::path& name) {
    std::error_code failed;
    if (fs::read_symlink(name, failed) == target && !failed) return;
    const fs::path beside = name.string() + std::string(kIncompleteSuffix);
    remove_quietly(beside);
    fs::create_symlink(target, name, failed);
    if (!failed) return;
    if (failed != std::errc::file_exists)
      throw cache_file_error("linking a file into its snapshot", name, failed.value());
    fs::create_symlink(target, beside, failed);
    if (failed) throw cache_file_error("linking a file into its snapshot", name, failed.value());
    rename_file(beside, name);
  }

  /// Takes away what kills left behind and no run can use any more: parts of files that are whole by now, parts without
  /// a journal, and parts of contents that the same branch no longer has. Parts of other revisions stay resumable.
  void clean_up() const {
    std::set<std::string> current;
    for (const HubFile& file : listed_) current.insert(file.etag());
    std::error_code failed;
    for (fs::directory_iterator it(folder_.blobs(), failed), end; !failed && it != end; it.increment(failed)) {
      const std::string path = it->path().string();
      for (const std::string_view suffix : {kIncompleteSuffix, kJournalSuffix}) {
        if (path.size() <= suffix.size() || path.compare(path.size() - suffix.size(), suffix.size(), suffix) != 0)
          continue;
        const std::string blob = path.substr(0, path.size() - suffix.size());
        const auto journal = Journal::load(blob + std::string(kJournalSuffix));
        std::error_code ignored;
        const bool superseded = journal && !journal->header.ref.empty() && journal->header.ref == options_.revision &&
                                !current.empty() && current.count(journal->header.etag) == 0;
        if (fs::exists(blob, ignored) || !journal || superseded) remove_quietly(path);
      }
    }
  }

  FetchResult finished() {
    result_.snapshot = folder_.snapshot(result_.commit);
    if (result_.bytes_downloaded == 0) result_.bytes_reused = result_.bytes_total;
    result_.elapsed = std::chrono::duration_cast<std::chrono::milliseconds>(steady_clock::now() - start_);
    progress_.phase = FetchProgress::Phase::done;
    progress_.bytes_done = progress_.bytes_total;
    progress_.files_done = progress_.files_total;
    progress_.file.clear();
    progress_.message.clear();
    progress_.remaining = progress_.file_remaining = std::chrono::seconds(0);
    report();
    return result_;
  }

  /// At every change of phase, else about four times a second.
  void report() {
    const auto now = steady_clock::now();
    if (progress_.phase == reported_phase_ && now - reported_ < std::chrono::milliseconds(250)) return;
    reported_ = now;
    reported_phase_ = progress_.phase;
    if (on_progress_) on_progress_(progress_);
  }

  const FetchOptions& options_;
  const FetchCallback& on_progress_;
  const std::atomic<bool>* cancel_;
  const RepoFolder folder_;
  const steady_clock::time_point start_ = steady_clock::now();

  std::vector<HubFile> listed_;   // all files of the commit, when the hub was asked
  std::vector<HubFile> missing_;  // whose content is to be downloaded
  int64_t present_bytes_ = 0;
  int64_t present_files_ = 0;
  FetchProgress progress_;
  FetchResult result_;
  steady_clock::time_point reported_{};
  FetchProgress::Phase reported_phase_ = FetchProgress::Phase::done;
};

}  // namespace

FetchResult fetch_pack(const FetchOptions& options, const FetchCallback& on_progress, const std::atomic<bool>* cancel) {
  check_options(options);
  return Fetch(options, on_progress, cancel).run();
}

}  // namespace tandem
