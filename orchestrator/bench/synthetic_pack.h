#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/common/family.h"
#include "runtime/common/ling_config.h"

namespace tandem {

// Packs of any size whose headers are those of a real pack and whose bytes are noise: for benches and tests of what
// moves bytes. Not for computing.

struct SyntheticPackOptions {
  LingConfig config;
  ComponentBits bits;               ///< 16 = unquantized
  bool fused = true;                ///< KDA q, k, v and their convolutions as one tensor each
  int64_t shard_bytes = 256 << 20;  ///< a new file starts after so many
  uint64_t seed = 1;                ///< a tensor's bytes depend on it and on the tensor's name, fused or not
};

/// Writes config.json, a tokenizer.json of one line, the safetensors files, and their index when there are several.
/// @return bytes of the safetensors files
int64_t write_synthetic_pack(const std::filesystem::path& folder, const SyntheticPackOptions& options);

/// The model that the bench splits: Ling-3.1-flash's bit plan over as many layers as make up about `pack_bytes`.
SyntheticPackOptions synthetic_pack_of(int64_t pack_bytes);

/// Re-joins a split: every byte of every tensor of the pack must be in the slices, once for cut tensors and on each
/// rank for whole ones, and the slices must hold nothing else.
/// @return "" or what differs, naming tensor and rank
std::string compare_split(const std::filesystem::path& pack_folder,
                          const std::vector<std::filesystem::path>& rank_folders);

}  // namespace tandem
