#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "orchestrator/fetch/hub.h"

// The layout of the Hugging Face cache on disk, which other tools share:
//   models--org--name/blobs/<etag>                       contents, named by sha256 (LFS) or git blob sha1
//   models--org--name/snapshots/<commit>/<path>          relative symlinks into blobs
//   models--org--name/refs/<branch>                      the commit a branch stood for when last asked
// and what we add to it:
//   models--org--name/blobs/<etag>.tandem.incomplete     a download under way, with
//   models--org--name/blobs/<etag>.tandem.journal        the ranges of it that are safely on disk (journal.h)
//   models--org--name/.tandem/<commit>.json              the commit's file list, so that "is it whole?" needs no
//   network

namespace tandem {

/// $HF_HUB_CACHE, else $HF_HOME/hub, else $XDG_CACHE_HOME or ~/.cache + /huggingface/hub.
std::filesystem::path hub_cache_dir();

/// cache / "models--org--name". @throws Error for an invalid repo id
std::filesystem::path repo_cache_dir(const std::filesystem::path& cache, const std::string& repo);

/// A snapshot folder in the cache.
struct Snapshot {
  std::string repo;
  std::string commit;
  std::filesystem::path path;     ///< .../snapshots/<commit>
  std::vector<std::string> refs;  ///< branches that point here
  int64_t files = 0;
  int64_t bytes = 0;             ///< sizes of the files its links reach
  std::optional<bool> complete;  ///< by the saved file list; nothing when another tool wrote it and left no list
};

struct CachedRepo {
  std::string repo;
  std::filesystem::path path;
  int64_t blob_bytes = 0;           ///< finished contents, on disk
  int64_t partial_bytes = 0;        ///< unfinished downloads, blocks on disk
  std::vector<Snapshot> snapshots;  ///< by commit, byte order
};

/// The snapshot of a commit, or of the commit a ref of the cache stands for. Looks for the commit first, never
/// asks the network. Nothing when there is none.
std::optional<Snapshot> find_snapshot(const std::filesystem::path& cache, const std::string& repo,
                                      const std::string& revision);

/// Every repository of the cache, by name in byte order. A folder that cannot be read is left out with a warning.
std::vector<CachedRepo> list_cache(const std::filesystem::path& cache);

/// The file list saved for a commit, or nothing. A list that does not parse counts as none.
std::optional<std::vector<HubFile>> load_file_list(const std::filesystem::path& cache, const std::string& repo,
                                                   const std::string& commit);

}  // namespace tandem
