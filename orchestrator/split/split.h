#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "orchestrator/split/rank_paths.h"

namespace tandem {

// Pack -> one folder per rank. A rank folder is a pack of its own: safetensors files with this rank's slices of every
// tensor, the pack's small files, and manifest.json. Everything in it is a byte copy: nothing is decoded or rounded.

struct SplitOptions {
  std::filesystem::path pack_folder;
  std::filesystem::path ranks_folder;
  std::string pack_key;     ///< "" = from the pack folder's name and content
  std::string pack_repo;    ///< for the manifest; may be ""
  std::string pack_commit;  ///< likewise
  int world_size = 2;
  std::vector<int> ranks;                         ///< which to write here; empty = all
  int threads = 0;                                ///< 0 = as many as cores, at most 8
  int64_t disk_reserve_bytes = int64_t{1} << 30;  ///< left free on the disk after the split
};

struct SplitProgress {
  int64_t bytes_done = 0;  ///< written, or found finished by an earlier run
  int64_t bytes_total = 0;
  int files_done = 0;
  int files_total = 0;
};

struct SplitResult {
  struct Rank {
    int rank = 0;
    std::filesystem::path folder;
    bool already_there = false;
    int64_t bytes = 0;          ///< of the folder's files
    int64_t bytes_resumed = 0;  ///< of them, finished by an earlier run
  };
  std::vector<Rank> ranks;
  std::vector<std::string> unused_tensors;  ///< of the pack, not part of the model: left out
};

/// Writes the rank folders that are not there yet. A folder appears under its name only when it is whole; until then it
/// is "<name>.partial" with a journal of finished files, and a later call goes on from there. A folder that is there
/// but damaged or of other content is replaced, also in one step. Uses at most 256 MiB whatever the pack's size, and
/// drops the pages it read and wrote from the page cache.
/// @param progress  called from the calling thread a few times a second and once at the end; may be empty
/// @param cancel    set by a signal handler; the call then ends with Error(interrupted), resumable
/// @throws Error    kind `split`: world_size 1 (nothing to split: the pack itself is served), a cut that does not fall
///                  between heads and 128-wide blocks (with reasons), no space, a full disk, another split of the same
///                  rank running; kind `pack`: the pack is broken
SplitResult split_pack(const SplitOptions& options, const std::function<void(const SplitProgress&)>& progress = {},
                       const std::atomic<bool>* cancel = nullptr);

/// Bytes that each of `ranks` would take, from the pack's headers. For plans and the free-space check.
std::vector<int64_t> planned_rank_bytes(const std::filesystem::path& pack_folder, int world_size,
                                        const std::vector<int>& ranks);

}  // namespace tandem
