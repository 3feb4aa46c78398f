#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/common/family.h"
#include "runtime/common/pack.h"

namespace tandem {

// From stored tensors to a rank's slices: pure arithmetic over the family's table.

/// Raised when folders written before would be cut or stored differently.
inline constexpr int kSplitLayoutVersion = 1;

struct Range {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

/// Which tensor of a module a file's tensor is.
enum class StoredPart { plain, bias, trellis, suh, svh, su, sv, marker };

/// A tensor name of a pack, understood.
struct StoredName {
  std::string_view module;  ///< stem of the name it was made from
  StoredPart part = StoredPart::plain;
  std::vector<const Module*> modules;  ///< one; or the parts of a fused module, in row order
};

/// None when the model has no such tensor (an extra of the converter).
std::optional<StoredName> understand_name(const ModuleTable& table, std::string_view tensor_name);

/// A rank's part of one stored tensor.
struct Slice {
  int axis = -1;               ///< of the stored tensor; -1: the rank has all of it
  std::vector<Range> ranges;   ///< along that axis, ascending; several for fused tensors. Empty with axis -1
  std::vector<int64_t> shape;  ///< of the rank's tensor
  bool present = true;         ///< false: this rank has none of it (the bias of a sum belongs to rank 0)
};

/// @param full_shape  of the tensor in the whole pack
/// @throws Error      kind `split`: it does not divide, or a cut would go through a 128-wide block of EXL3
Slice slice_of(const StoredName& name, const TensorInfo& full, int world_size, int rank);

/// Checks that a pack (world_size 1) or a rank folder has every module of the table, each once, fused or not, with the
/// shapes the config gives, outputs padded to 128 where quantized. Extra tensors are let through.
/// Looks at headers only: codebook markers are checked by Pack::find_exl3 when a linear is loaded.
/// @return       names of tensors that the model does not use
/// @throws Error kind `pack`, naming the module, with both shapes
std::vector<std::string> check_tensors(const Pack& pack, const ModuleTable& table, int world_size);

}  // namespace tandem
