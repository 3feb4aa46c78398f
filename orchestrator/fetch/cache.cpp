#include "orchestrator/fetch/cache.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "orchestrator/fetch/cache_layout.h"
#include "orchestrator/fetch/file_io.h"
#include "runtime/common/log.h"

namespace tandem {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kMaxListFile = 64LL << 20;
constexpr std::string_view kFolderPrefix = "models--";

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool ends_with(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code failed;
  for (fs::directory_iterator it(folder, failed), end; !failed && it != end; it.increment(failed))
    entries.push_back(it->path());
  std::sort(entries.begin(), entries.end());
  return entries;
}

void collect_refs(const fs::path& folder, const std::string& prefix, int depth,
                  std::vector<std::pair<std::string, std::string>>* refs) {
  for (const fs::path& entry : entries_of(folder)) {
    const std::string name = prefix + entry.filename().string();
    std::error_code ignored;
    if (fs::is_directory(entry, ignored)) {
      if (depth < 8) collect_refs(entry, name + "/", depth + 1, refs);
    } else if (!ends_with(name, kIncompleteSuffix)) {
      std::string commit = read_if_small(entry, 256);
      while (!commit.empty() && (commit.back() == '\n' || commit.back() == ' ')) commit.pop_back();
      if (is_commit(commit)) refs->emplace_back(name, commit);
    }
  }
}

void count_files(const fs::path& folder, int depth, Snapshot* snapshot) {
  for (const fs::path& entry : entries_of(folder)) {
    std::error_code failed;
    if (fs::is_directory(fs::symlink_status(entry, failed))) {
      if (depth < 32) count_files(entry, depth + 1, snapshot);
    } else if (const auto size = fs::file_size(entry, failed); !failed) {  // a link without its blob counts as absent
      ++snapshot->files;
      snapshot->bytes += static_cast<int64_t>(size);
    }
  }
}

Snapshot read_snapshot(const RepoFolder& folder, const std::string& commit) {
  Snapshot snapshot;
  snapshot.repo = folder.repo;
  snapshot.commit = commit;
  snapshot.path = folder.snapshot(commit);
  count_files(snapshot.path, 0, &snapshot);
  for (const auto& [name, target] : folder.refs()) {
    if (target == commit) snapshot.refs.push_back(name);
  }
  if (const auto files = folder.load_list(commit)) {
    snapshot.complete =
        std::all_of(files->begin(), files->end(), [&](const HubFile& file) { return folder.has_file(commit, file); });
  }
  return snapshot;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> RepoFolder::refs() const {
  std::vector<std::pair<std::string, std::string>> refs;
  collect_refs(path / "refs", "", 0, &refs);
  return refs;
}

bool RepoFolder::has_file(const std::string& commit, const HubFile& file) const {
  struct stat info {};
  const fs::path place = snapshot(commit) / file.path;
  return ::stat(place.c_str(), &info) == 0 && S_ISREG(info.st_mode) && info.st_size == file.size;
}

bool RepoFolder::has_blob(const HubFile& file) const {
  struct stat info {};
  return ::lstat(blob(file).c_str(), &info) == 0 && S_ISREG(info.st_mode) && info.st_size == file.size;
}

std::optional<std::vector<HubFile>> RepoFolder::load_list(const std::string& commit) const {
  const auto document = nlohmann::json::parse(read_if_small(list_file(commit), kMaxListFile), nullptr, false);
  try {
    if (!document.is_object() || document.at("schema") != "tandem.file-list/v1") return std::nullopt;
    std::vector<HubFile> files;
    for (const auto& entry : document.at("files")) {
      HubFile file;
      entry.at("path").get_to(file.path);
      entry.at("size").get_to(file.size);
      file.sha256 = entry.value("sha256", "");
      file.git_sha1 = entry.value("git_sha1", "");
      files.push_back(std::move(file));
    }
    check_file_list(files);
    return files;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

void RepoFolder::save_list(const std::string& commit, const std::vector<HubFile>& files) const {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const HubFile& file : files) {
    nlohmann::ordered_json entry = {{"path", file.path}, {"size", file.size}};
    if (!file.sha256.empty()) entry["sha256"] = file.sha256;
    if (!file.git_sha1.empty()) entry["git_sha1"] = file.git_sha1;
    list.push_back(std::move(entry));
  }
  const nlohmann::ordered_json document = {
      {"schema", "tandem.file-list/v1"}, {"repo", repo}, {"commit", commit}, {"files", list}};
  make_folders(list_file(commit).parent_path(), ErrorKind::fetch);
  replace_cache_file(list_file(commit), document.dump(1) + "\n");
}

RepoFolder repo_folder(const fs::path& cache, const std::string& repo) {
  return RepoFolder{repo, repo_cache_dir(cache, repo)};
}

fs::path hub_cache_dir() {
  if (const auto path = environment("HF_HUB_CACHE"); !path.empty()) return path;
  if (const auto home = environment("HF_HOME"); !home.empty()) return fs::path(home) / "hub";
  if (const auto cache = environment("XDG_CACHE_HOME"); !cache.empty()) return fs::path(cache) / "huggingface" / "hub";
  const std::string home = environment("HOME");
  if (home.empty()) {
    throw Error(ErrorKind::fetch, "no place for the cache: neither HF_HUB_CACHE, HF_HOME nor HOME is set", "",
                "set HF_HUB_CACHE to a folder with enough space");
  }
  return fs::path(home) / ".cache" / "huggingface" / "hub";
}

fs::path repo_cache_dir(const fs::path& cache, const std::string& repo) {
  check_repo_id(repo);
  std::string name = repo;
  if (const auto slash = name.find('/'); slash != std::string::npos) name.replace(slash, 1, "--");
  return cache / (std::string(kFolderPrefix) + name);
}

std::optional<Snapshot> find_snapshot(const fs::path& cache, const std::string& repo, const std::string& revision) {
  check_revision(revision);
  const RepoFolder folder = repo_folder(cache, repo);
  const auto present = [&](const std::string& commit) {
    std::error_code ignored;
    return fs::is_directory(folder.snapshot(commit), ignored);
  };
  if (is_commit(revision)) return present(revision) ? std::optional(read_snapshot(folder, revision)) : std::nullopt;
  for (const auto& [name, commit] : folder.refs()) {
    if (name == revision && present(commit)) return read_snapshot(folder, commit);
  }
  return std::nullopt;
}

std::vector<CachedRepo> list_cache(const fs::path& cache) {
  std::vector<CachedRepo> repos;
  for (const fs::path& entry : entries_of(cache)) {
    const std::string name = entry.filename().string();
    std::error_code ignored;
    if (name.rfind(kFolderPrefix, 0) != 0 || !fs::is_directory(entry, ignored)) continue;
    CachedRepo repo;
    repo.repo = name.substr(kFolderPrefix.size());
    if (const auto dashes = repo.repo.find("--"); dashes != std::string::npos) repo.repo.replace(dashes, 2, "/");
    repo.path = entry;
    try {
      check_repo_id(repo.repo);
    } catch (const Error&) {
      log_warn("a folder of the cache has no repository's name", {{"path", entry.string()}});
      continue;
    }
    for (const fs::path& blob : entries_of(entry / "blobs")) {
      struct stat info {};
      if (::lstat(blob.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
      const bool partial = ends_with(blob.string(), ".incomplete") || ends_with(blob.string(), kJournalSuffix);
      (partial ? repo.partial_bytes : repo.blob_bytes) +=
          partial ? static_cast<int64_t>(info.st_blocks) * 512 : info.st_size;
    }
    const RepoFolder folder{repo.repo, entry};
    for (const fs::path& snapshot : entries_of(entry / "snapshots")) {
      const std::string commit = snapshot.filename().string();
      if (is_commit(commit)) repo.snapshots.push_back(read_snapshot(folder, commit));
    }
    repos.push_back(std::move(repo));
  }
  std::sort(repos.begin(), repos.end(), [](const CachedRepo& a, const CachedRepo& b) { return a.repo < b.repo; });
  return repos;
}

std::optional<std::vector<HubFile>> load_file_list(const fs::path& cache, const std::string& repo,
                                                   const std::string& commit) {
  if (!is_commit(commit)) return std::nullopt;
  return repo_folder(cache, repo).load_list(commit);
}

}  // namespace tandem
