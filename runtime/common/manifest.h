#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/common/family.h"
#include "runtime/common/safetensors.h"
#include "runtime/common/shard.h"

namespace tandem {

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kManifestSchema = "tandem.rank-folder/v1";

struct ManifestFile {
  std::string name;
  int64_t bytes = 0;
  std::string sha256;
};

struct ManifestTensor {
  TensorInfo info;                  ///< as stored in the rank folder; offsets from the start of the file's data section
  int file = 0;                     ///< index into files
  std::vector<int64_t> full_shape;  ///< in the whole pack
  int axis = -1;                    ///< -1: whole
  std::vector<Range> ranges;        ///< along axis, in the whole pack
};

/// manifest.json: what a rank folder is (docs/design.md, contract 3).
struct Manifest {
  std::string pack_repo;    ///< "" when the pack was a folder
  std::string pack_commit;  ///< "" when not known
  std::string pack_hash;    ///< Pack::content_hash() of the whole pack
  std::string family;       ///< "BailingMoeV3ForCausalLM"
  int world_size = 1;
  int rank = 0;
  int layout_version = kSplitLayoutVersion;
  ComponentBits bits;  ///< mean bits per weight of each component, as stored
  std::vector<ManifestFile> files;
  std::vector<ManifestTensor> tensors;
};

/// Writes manifest.json in one step. Tensors are asked for one by one so that 400,000 of them need no memory.
/// @param next_tensor  fills its argument and returns true, or returns false at the end; `manifest.tensors` is ignored
void write_manifest(const std::filesystem::path& rank_folder, const Manifest& manifest,
                    const std::function<bool(ManifestTensor&)>& next_tensor);

/// @param with_tensors  false leaves `tensors` empty: enough to know what a folder is
/// @throws Error        kind `pack`: missing, not JSON, another schema, values out of bounds
Manifest read_manifest(const std::filesystem::path& rank_folder, bool with_tensors = true);

/// What a rank folder has to be. Empty and -1 fields accept anything.
struct ManifestExpectation {
  int world_size = -1;
  int rank = -1;
  std::string pack_hash;
};

/// Refuses, by name and with both values, a folder of another layout version, world size, rank or pack, and a file that
/// is missing or whose size changed. Does not read the files' content.
/// @throws Error kind `pack`
void check_manifest(const std::filesystem::path& rank_folder, const Manifest& manifest,
                    const ManifestExpectation& expected);

/// Hashes every file again. @throws Error kind `pack` naming the first file that differs; `interrupted` on cancel
void verify_rank_folder(const std::filesystem::path& rank_folder, const Manifest& manifest,
                        const std::atomic<bool>* cancel = nullptr);

/// True when the folder has a manifest.json (a rank folder rather than a whole pack).
bool is_rank_folder(const std::filesystem::path& folder);

}  // namespace tandem
