#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/common/family.h"
#include "runtime/common/pack.h"
#include "runtime/common/shard.h"

namespace tandem {

/// "__metadata__" of a rank's files.
inline const std::map<std::string, std::string> kRankFileMetadata{{"format", "pt"}};

/// One tensor of a pack's file and what each rank gets of it.
struct TensorJob {
  const PackTensor* source = nullptr;
  std::vector<Slice> slices;  ///< one per rank of `ranks`, in that order
};

/// What becomes of one file of a pack. The jobs are in the order in which every rank's file stores them: tensors whose
/// size divides by 64 first, then by 32, and so on, so that each lies at a multiple of what its size divides by and
/// can be used in place from a mapping. Among equals the source's order stays, for sequential reading.
struct ShardPlan {
  std::string name;  ///< of the source file and of the ranks' files
  std::vector<TensorJob> jobs;

  /// The tensors that the rank at `position` stores, offsets not set.
  std::vector<TensorInfo> stored_tensors(size_t position) const;
};

/// Tensors that the model does not use are left out.
/// @throws Error kind `split`, from slice_of
ShardPlan plan_shard(const Pack& pack, const ModuleTable& table, int file, int world_size,
                     const std::vector<int>& ranks);

}  // namespace tandem
