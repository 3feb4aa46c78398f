#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "orchestrator/split/shard_plan.h"
#include "runtime/common/file.h"

namespace tandem {

/// One output of copy_shard.
struct ShardTarget {
  size_t position = 0;            ///< of the rank in the plan's `ranks`
  std::filesystem::path folder;   ///< the file gets the plan's name
  StreamedFile::Finished result;  ///< set by copy_shard
};

/// Reads one file of the pack once, front to back as far as the tensors' order allows, and writes each target's slices.
/// @param buffer_bytes  memory for reading, and as much again for each target
/// @param bytes_done    grows with every byte written; shared by threads
/// @param stop          polled every few MiB; ends the copy with Error(interrupted), nothing visible
/// @throws Error        kind `split`; a full disk is named as such
void copy_shard(const Pack& pack, const ShardPlan& plan, std::vector<ShardTarget>& targets, int64_t buffer_bytes,
                std::atomic<int64_t>& bytes_done, const std::atomic<bool>& stop);

}  // namespace tandem
