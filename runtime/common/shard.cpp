#include "runtime/common/shard.h"

#include <algorithm>
#include <array>

namespace tandem {
namespace {

constexpr int64_t kBlock = 128;

struct PartRow {
  std::string_view suffix;
  StoredPart part;
};

constexpr std::array<PartRow, 9> kParts{{{"weight", StoredPart::plain},
                                         {"bias", StoredPart::bias},
                                         {"trellis", StoredPart::trellis},
                                         {"suh", StoredPart::suh},
                                         {"svh", StoredPart::svh},
                                         {"su", StoredPart::su},
                                         {"sv", StoredPart::sv},
                                         {"mcg", StoredPart::marker},
                                         {"mul1", StoredPart::marker}}};

/// Where features of a module lie in one stored part: along which axis, and how many of them one element covers.
struct FeatureAxis {
  int axis = -1;
  int64_t features_per_element = 1;
};

FeatureAxis feature_axis(StoredPart part, Cut cut) {
  const bool out = cut == Cut::out_features;
  switch (part) {
    case StoredPart::plain:
      return {out ? 0 : 1, 1};
    case StoredPart::trellis:
      return {out ? 1 : 0, 16};
    case StoredPart::suh:
      return {out ? -1 : 0, 1};
    case StoredPart::svh:
      return {out ? 0 : -1, 1};
    case StoredPart::su:
      return {out ? -1 : 0, 16};
    case StoredPart::sv:
      return {out ? 0 : -1, 16};
    case StoredPart::bias:
      return {out ? 0 : -1, 1};
    case StoredPart::marker:
      return {};
  }
  return {};
}

int64_t features_of(const Module& module) {
  return module.shape[module.cut == Cut::in_features ? 1 : 0];
}

/// A_log may be stored as [1, 1, heads, 1]: the one axis that is as long as the module.
int only_long_axis(const std::vector<int64_t>& shape, int64_t length) {
  const auto it = std::find(shape.begin(), shape.end(), length);
  return it == shape.end() ? 0 : static_cast<int>(it - shape.begin());
}

std::string stored_text(const TensorInfo& t) {
  return "tensor '" + printable(t.name, 200) + "'";
}

}  // namespace

std::optional<StoredName> understand_name(const ModuleTable& table, std::string_view tensor_name) {
  if (const Module* module = table.find(tensor_name); module && !module->has_weight_suffix)
    return StoredName{tensor_name, StoredPart::plain, {module}};
  const size_t dot = tensor_name.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view stem = tensor_name.substr(0, dot);
  const std::string_view suffix = tensor_name.substr(dot + 1);
  const auto row = std::find_if(kParts.begin(), kParts.end(), [&](const PartRow& r) { return r.suffix == suffix; });
  if (row == kParts.end()) return std::nullopt;
  StoredName name{stem, row->part, {}};
  if (const Module* module = table.find(stem))
    name.modules = {module};
  else
    name.modules = table.find_fused(stem);
  // Norms, convolutions and raw parameters have no other form than the plain one.
  if (name.modules.empty() || !name.modules[0]->has_weight_suffix ||
      (name.part != StoredPart::plain && name.modules[0]->shape.size() != 2))
    return std::nullopt;
  return name;
}

Slice slice_of(const StoredName& name, const TensorInfo& full, int world_size, int rank) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::split,
                stored_text(full) + " cannot be cut for " + std::to_string(world_size) + " ranks: " + what, "",
                "choose a world size that divides the model's heads and 128-wide blocks");
  };
  Slice slice{.shape = full.shape};
  const Module& first = *name.modules[0];
  if (first.cut == Cut::whole || world_size == 1) return slice;
  // A bias is added once: to the sum of the ranks' parts, by rank 0.
  if (name.part == StoredPart::bias && first.cut == Cut::in_features) {
    slice.present = rank == 0;
    return slice;
  }
  FeatureAxis where = feature_axis(name.part, first.cut);
  if (where.axis < 0) return slice;
  if (name.part == StoredPart::plain && first.shape.size() == 1)
    where.axis = only_long_axis(full.shape, first.shape[0]);
  if (where.axis >= static_cast<int>(full.shape.size())) refuse("it has shape " + shape_text(full.shape));

  const bool in_blocks = name.part != StoredPart::plain && name.part != StoredPart::bias;
  int64_t offset = 0;  // features of the parts before
  int64_t mine = 0;
  for (const Module* module : name.modules) {
    if (module->units % world_size != 0)
      refuse(std::to_string(module->units) + " units of " + std::to_string(module->unit) + " do not divide");
    const int64_t share = module->units / world_size * module->unit;
    const Range range{offset + share * rank, offset + share * (rank + 1)};
    if (in_blocks && (range.begin % kBlock != 0 || range.end % kBlock != 0))
      refuse("features " + std::to_string(range.begin) + " to " + std::to_string(range.end) +
             " cut through a 128-wide block");
    slice.ranges.push_back({range.begin / where.features_per_element, range.end / where.features_per_element});
    mine += slice.ranges.back().size();
    offset += features_of(*module);
  }
  const auto axis = static_cast<size_t>(where.axis);
  if (full.shape[axis] * where.features_per_element != offset)
    refuse("axis " + std::to_string(where.axis) + " of shape " + shape_text(full.shape) + " does not hold " +
           std::to_string(offset) + " features");
  slice.axis = where.axis;
  slice.shape[axis] = mine;
  return slice;
}

// ---- check_tensors ----

namespace {

int64_t pad_to_block(int64_t n) {
  return (n + kBlock - 1) / kBlock * kBlock;
}

class TensorChecker {
 public:
  TensorChecker(const Pack& pack, int world_size) : pack_(pack), world_size_(world_size) {}

  /// Finds the module under its own name, or false.
  bool check(const std::string& stored_name, const std::vector<const Module*>& parts) const {
    const Module& first = *parts[0];
    std::vector<int64_t> shape = local_shape(first);
    for (size_t i = 1; i < parts.size(); ++i) shape[0] += local_shape(*parts[i])[0];

    const std::string plain_name = first.has_weight_suffix ? stored_name + ".weight" : stored_name;
    const PackTensor* plain = pack_.find(plain_name);
    const std::optional<Exl3Linear> exl3 =
        shape.size() == 2 ? pack_.find_exl3(stored_name, false) : std::optional<Exl3Linear>();
    if (plain && exl3) refuse(stored_name + " is stored twice, quantized and not");
    if (plain) check_plain(*plain, shape);
    if (exl3) check_exl3(*exl3, first, shape);
    return plain || exl3;
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorKind::pack, what, pack_.folder().string(), "fetch the pack again, or choose another");
  }

 private:
  std::vector<int64_t> local_shape(const Module& m) const {
    std::vector<int64_t> shape = m.shape;
    if (m.cut != Cut::whole) shape[m.cut == Cut::in_features ? 1 : 0] /= world_size_;
    return shape;
  }

  void check_plain(const PackTensor& tensor, const std::vector<int64_t>& expected) const {
    const TensorInfo& t = tensor.info;
    if (t.dtype != DType::bf16 && t.dtype != DType::f16 && t.dtype != DType::f32)
      refuse(stored_text(t) + " has dtype " + std::string(dtype_name(t.dtype)) + ", expected BF16, F16 or F32");
    std::vector<int64_t> shape = t.shape;
    if (expected.size() == 1) std::erase(shape, 1);
    if (shape.empty()) shape = {1};
    if (shape != expected)
      refuse(stored_text(t) + " has shape " + shape_text(t.shape) + ", expected " + shape_text(expected));
  }

  void check_exl3(const Exl3Linear& linear, const Module& module, const std::vector<int64_t>& expected) const {
    if (!module.quantizable) refuse(linear.module + " is stored as EXL3, but this version needs it unquantized");
    const std::vector<int64_t> padded{pad_to_block(expected[0]), pad_to_block(expected[1])};
    const std::vector<int64_t> stored{linear.out_features, linear.in_features};
    if (stored != padded)
      refuse(linear.module + " has shape " + shape_text(stored) + " [out, in], expected " + shape_text(padded));
  }

  const Pack& pack_;
  int world_size_;
};

}  // namespace

std::vector<std::string> check_tensors(const Pack& pack, const ModuleTable& table, int world_size) {
  const TensorChecker checker(pack, world_size);
  for (const Module& module : table.modules()) {
    const bool alone = checker.check(module.name, {&module});
    bool fused = false;
    if (!module.fused_name.empty()) fused = checker.check(module.fused_name, table.find_fused(module.fused_name));
    if (alone && fused) checker.refuse(module.name + " is stored twice, also as part of " + module.fused_name);
    if (!alone && !fused && !(module.component == Component::head && table.is_head_tied()))
      checker.refuse("the pack has no tensor for '" + module.name + "'");
  }
  std::vector<std::string> unused;
  for (const PackTensor& tensor : pack.tensors())
    if (!understand_name(table, tensor.info.name)) unused.push_back(tensor.info.name);
  return unused;
}

}  // namespace tandem
