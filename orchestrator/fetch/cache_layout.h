#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "orchestrator/fetch/file_io.h"
#include "orchestrator/fetch/hub.h"

namespace tandem {

/// One repository's folder in the cache: where its parts are. See cache.h for the layout.
struct RepoFolder {
  std::string repo;
  std::filesystem::path path;  ///< .../models--org--name

  std::filesystem::path blobs() const { return path / "blobs"; }
  std::filesystem::path blob(const HubFile& file) const { return blobs() / file.etag(); }
  std::filesystem::path incomplete(const HubFile& file) const {
    return blob(file).string() + std::string(kIncompleteSuffix);
  }
  std::filesystem::path journal(const HubFile& file) const { return blob(file).string() + std::string(kJournalSuffix); }
  std::filesystem::path snapshot(const std::string& commit) const { return path / "snapshots" / commit; }
  std::filesystem::path ref(const std::string& revision) const { return path / "refs" / revision; }
  std::filesystem::path list_file(const std::string& commit) const { return path / ".tandem" / (commit + ".json"); }

  /// The snapshot has this file, with its size.
  bool has_file(const std::string& commit, const HubFile& file) const;
  /// The blob is there, with its size: whoever downloaded it.
  bool has_blob(const HubFile& file) const;
  /// (name, commit) of every ref, by name in byte order.
  std::vector<std::pair<std::string, std::string>> refs() const;

  std::optional<std::vector<HubFile>> load_list(const std::string& commit) const;
  void save_list(const std::string& commit, const std::vector<HubFile>& files) const;
};

RepoFolder repo_folder(const std::filesystem::path& cache, const std::string& repo);

}  // namespace tandem
