#include "orchestrator/bench/synthetic_pack.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "runtime/common/file.h"
#include "runtime/common/manifest.h"
#include "runtime/common/pack.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBlock = 128;
constexpr uint32_t kMul1Multiplier = 0x83DCD12D;

std::string config_text(const LingConfig& c) {
  nlohmann::ordered_json json{{"architectures", {kLingArchitecture}},
                              {"model_type", "bailing_hybrid"},
                              {"vocab_size", c.vocab_size},
                              {"hidden_size", c.hidden_size},
                              {"intermediate_size", c.intermediate_size},
                              {"num_hidden_layers", c.num_hidden_layers},
                              {"num_attention_heads", c.num_attention_heads},
                              {"head_dim", c.head_dim},
                              {"layer_group_size", c.layer_group_size},
                              {"first_k_dense_replace", c.first_k_dense_replace},
                              {"rms_norm_eps", c.rms_norm_eps},
                              {"max_position_embeddings", c.max_position_embeddings},
                              {"short_conv_kernel_size", c.short_conv_kernel_size},
                              {"kda_safe_gate", c.kda_safe_gate},
                              {"kv_lora_rank", c.kv_lora_rank},
                              {"qk_nope_head_dim", c.qk_nope_head_dim},
                              {"qk_rope_head_dim", c.qk_rope_head_dim},
                              {"v_head_dim", c.v_head_dim},
                              {"rope_theta", c.rope_theta},
                              {"num_experts", c.num_experts},
                              {"num_experts_per_tok", c.num_experts_per_tok},
                              {"num_shared_experts", c.num_shared_experts},
                              {"moe_intermediate_size", c.moe_intermediate_size},
                              {"moe_shared_expert_intermediate_size", c.moe_shared_expert_intermediate_size},
                              {"n_group", c.n_group},
                              {"topk_group", c.topk_group},
                              {"routed_scaling_factor", c.routed_scaling_factor},
                              {"num_nextn_predict_layers", c.num_nextn_predict_layers}};
  json["q_lora_rank"] = c.q_lora_rank ? nlohmann::ordered_json(*c.q_lora_rank) : nlohmann::ordered_json();
  return json.dump(2);
}

int64_t pad_to_block(int64_t n) {
  return (n + kBlock - 1) / kBlock * kBlock;
}

uint64_t mix(uint64_t x) {  // the finaliser of splitmix64
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

std::vector<std::byte> noise(const std::string& name, uint64_t seed, int64_t bytes) {
  uint64_t state = seed;
  for (const char c : name) state = mix(state + 0x9E3779B97F4A7C15 + static_cast<uint8_t>(c));
  std::vector<std::byte> result(static_cast<size_t>((bytes + 7) / 8 * 8));
  for (size_t i = 0; i < result.size(); i += 8) {
    const uint64_t word = mix(state += 0x9E3779B97F4A7C15);
    std::memcpy(result.data() + i, &word, 8);
  }
  result.resize(static_cast<size_t>(bytes));
  return result;
}

/// One tensor to write: made of parts that lie side by side along `axis`.
struct Recipe {
  TensorInfo info;
  std::vector<TensorInfo> parts;
  size_t axis = 0;
  bool is_marker = false;
};

std::vector<std::byte> content_of(const Recipe& recipe, uint64_t seed) {
  if (recipe.is_marker) {
    std::vector<std::byte> bytes(sizeof(kMul1Multiplier));
    std::memcpy(bytes.data(), &kMul1Multiplier, bytes.size());
    return bytes;
  }
  const auto bytes_of = [](const TensorInfo& t, size_t first_axis) {
    int64_t bytes = dtype_bytes(t.dtype);
    for (size_t i = first_axis; i < t.shape.size(); ++i) bytes *= t.shape[i];
    return bytes;
  };
  if (recipe.parts.size() == 1) return noise(recipe.parts[0].name, seed, bytes_of(recipe.parts[0], 0));
  std::vector<std::vector<std::byte>> parts;
  for (const TensorInfo& part : recipe.parts) parts.push_back(noise(part.name, seed, bytes_of(part, 0)));
  std::vector<std::byte> whole;
  const int64_t rows = recipe.axis == 0 ? 1 : recipe.info.shape[0];
  for (int64_t row = 0; row < rows; ++row)
    for (const auto& part : parts) {
      const auto row_bytes = static_cast<std::ptrdiff_t>(part.size()) / rows;
      whole.insert(whole.end(), part.begin() + row * row_bytes, part.begin() + (row + 1) * row_bytes);
    }
  return whole;
}

class RecipeList {
 public:
  explicit RecipeList(const SyntheticPackOptions& options) : options_(options) {}

  std::vector<Recipe> build() {
    const ModuleTable table(options_.config);
    for (const Module& module : table.modules()) {
      const bool fused = options_.fused && !module.fused_name.empty();
      if (fused && module.fused_part != 0) continue;
      if (fused)
        add_module(module.fused_name, table.find_fused(module.fused_name));
      else
        add_module(module.name, {&module});
    }
    return std::move(recipes_);
  }

 private:
  void add_module(const std::string& name, const std::vector<const Module*>& parts) {
    const Module& first = *parts[0];
    const double bits = options_.bits[first.component];
    if (!first.quantizable || bits >= 16) {
      const std::string suffix = first.has_weight_suffix ? ".weight" : "";
      std::vector<TensorInfo> infos;
      for (const Module* part : parts)
        infos.push_back({.name = part->name + suffix,
                         .dtype = first.full_precision ? DType::f32 : DType::bf16,
                         .shape = part->shape});
      add(name + suffix, std::move(infos), 0);
      return;
    }
    const int64_t in = pad_to_block(first.shape[1]);
    std::vector<TensorInfo> trellis, svh;
    for (const Module* part : parts) {
      const int64_t out = pad_to_block(part->shape[0]);
      trellis.push_back({.name = part->name + ".trellis",
                         .dtype = DType::i16,
                         .shape = {in / 16, out / 16, static_cast<int64_t>(bits * 16)}});
      svh.push_back({.name = part->name + ".svh", .dtype = DType::f16, .shape = {out}});
    }
    add(name + ".mul1", {{.name = first.name + ".mul1", .dtype = DType::i32, .shape = {}}}, 0);
    recipes_.back().is_marker = true;
    add(name + ".suh", {{.name = first.name + ".suh", .dtype = DType::f16, .shape = {in}}}, 0);
    add(name + ".svh", std::move(svh), 0);
    add(name + ".trellis", std::move(trellis), 1);
  }

  void add(const std::string& name, std::vector<TensorInfo> parts, size_t axis) {
    Recipe recipe{.info = parts[0], .parts = std::move(parts), .axis = axis};
    recipe.info.name = name;
    for (size_t i = 1; i < recipe.parts.size(); ++i) recipe.info.shape[axis] += recipe.parts[i].shape[axis];
    recipes_.push_back(std::move(recipe));
  }

  const SyntheticPackOptions& options_;
  std::vector<Recipe> recipes_;
};

int64_t info_bytes(const TensorInfo& t) {
  int64_t bytes = dtype_bytes(t.dtype);
  for (const int64_t n : t.shape) bytes *= n;
  return bytes;
}

}  // namespace

int64_t write_synthetic_pack(const fs::path& folder, const SyntheticPackOptions& options) {
  make_folders(folder, ErrorKind::pack);
  write_file_atomic(folder / "config.json", config_text(options.config), ErrorKind::pack);
  write_file_atomic(folder / "tokenizer.json", "{}\n", ErrorKind::pack);
  const std::vector<Recipe> recipes = RecipeList(options).build();

  std::vector<std::vector<const Recipe*>> shards(1);
  int64_t bytes = 0;
  for (const Recipe& recipe : recipes) {
    if (bytes >= options.shard_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    shards.back().push_back(&recipe);
    bytes += info_bytes(recipe.info);
  }

  int64_t total = 0;
  nlohmann::json weight_map;
  for (size_t i = 0; i < shards.size(); ++i) {
    char name[64] = "model.safetensors";
    if (shards.size() > 1) std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", i + 1, shards.size());
    std::vector<TensorInfo> infos;
    for (const Recipe* recipe : shards[i]) {
      infos.push_back(recipe->info);
      weight_map[recipe->info.name] = name;
    }
    SafetensorsWriter writer(folder / name, std::move(infos));
    for (const Recipe* recipe : shards[i]) writer.append(content_of(*recipe, options.seed));
    total += writer.finish().bytes;
  }
  if (shards.size() > 1)
    write_file_atomic(folder / "model.safetensors.index.json",
                      nlohmann::json{{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}}.dump(),
                      ErrorKind::pack);
  return total;
}

SyntheticPackOptions synthetic_pack_of(int64_t pack_bytes) {
  LingConfig c = published_ling_config("Ling-3.1-flash").value();
  c.vocab_size = 8192;
  c.hidden_size = 2048;
  c.intermediate_size = 4096;
  c.num_attention_heads = 16;
  c.q_lora_rank = 512;
  c.num_experts = 64;
  c.moe_intermediate_size = c.moe_shared_expert_intermediate_size = 1280;
  c.first_k_dense_replace = 1;
  c.num_nextn_predict_layers = 1;
  SyntheticPackOptions options{.config = c};
  options.bits[Component::routed_experts] = 3;
  options.bits[Component::shared_experts] = 5;
  options.bits[Component::kda_attention] = 4;
  options.bits[Component::dense_mlp] = 4;
  options.bits[Component::mla_attention] = 6;
  options.bits[Component::head] = 6;
  options.bits[Component::mtp] = 4;
  options.config.num_hidden_layers = 1;
  while (options.config.num_hidden_layers < 1024 && weight_bytes(options.config, options.bits).total() < pack_bytes)
    ++options.config.num_hidden_layers;
  return options;
}

namespace {

/// Compares one rank's tensor with the ranges of the whole one that it claims to be.
std::string compare_slice(std::span<const std::byte> full, const TensorInfo& full_info,
                          std::span<const std::byte> slice, const ManifestTensor& claim) {
  if (claim.full_shape != full_info.shape || claim.info.dtype != full_info.dtype) return "another full shape or dtype";
  if (claim.axis < 0)
    return slice.size() == full.size() && std::equal(slice.begin(), slice.end(), full.begin()) ? "" : "other bytes";
  const auto axis = static_cast<size_t>(claim.axis);
  int64_t inner = dtype_bytes(full_info.dtype);
  for (size_t i = axis + 1; i < full_info.shape.size(); ++i) inner *= full_info.shape[i];
  const int64_t row = inner * full_info.shape[axis];
  size_t at = 0;
  for (int64_t start = 0; start < static_cast<int64_t>(full.size()); start += row)
    for (const Range& range : claim.ranges) {
      const auto begin = static_cast<size_t>(start + range.begin * inner);
      const auto bytes = static_cast<size_t>(range.size() * inner);
      if (at + bytes > slice.size() || std::memcmp(full.data() + begin, slice.data() + at, bytes) != 0)
        return "other bytes at " + std::to_string(begin) + " of the whole tensor";
      at += bytes;
    }
  return at == slice.size() ? "" : "more bytes than its ranges";
}

/// The ranks' ranges together must cover the axis exactly once.
bool ranges_tile(std::vector<Range> ranges, int64_t length) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  int64_t cursor = 0;
  for (const Range& range : ranges) {
    if (range.begin != cursor) return false;
    cursor = range.end;
  }
  return cursor == length;
}

}  // namespace

std::string compare_split(const fs::path& pack_folder, const std::vector<fs::path>& rank_folders) {
  const Pack pack = Pack::open(pack_folder);
  std::map<std::string, std::vector<Range>, std::less<>> covered;
  for (size_t rank = 0; rank < rank_folders.size(); ++rank) {
    const Pack part = Pack::open(rank_folders[rank]);
    const Manifest manifest = read_manifest(rank_folders[rank]);
    const std::string where = "rank " + std::to_string(rank) + ": ";
    if (manifest.tensors.size() != part.tensors().size()) return where + "manifest and files differ in their tensors";
    for (const ManifestTensor& claim : manifest.tensors) {
      const PackTensor* whole = pack.find(claim.info.name);
      const PackTensor* slice = part.find(claim.info.name);
      if (!whole || !slice) return where + claim.info.name + " is not in both folders";
      const std::string& file = manifest.files[static_cast<size_t>(claim.file)].name;
      if (slice->info.shape != claim.info.shape || slice->info.begin != claim.info.begin ||
          part.files()[static_cast<size_t>(slice->file)].name != file)
        return where + claim.info.name + " is not where the manifest says";
      const std::string problem = compare_slice(pack.data(*whole), whole->info, part.data(*slice), claim);
      if (!problem.empty()) return where + claim.info.name + ": " + problem;
      std::vector<Range>& ranges = covered[claim.info.name];
      ranges.insert(ranges.end(), claim.ranges.begin(), claim.ranges.end());
    }
    const auto axis_of = [](const ManifestTensor& t) { return static_cast<size_t>(t.axis); };
    if (rank + 1 == rank_folders.size())
      for (const ManifestTensor& claim : manifest.tensors)
        if (claim.axis >= 0 && !ranges_tile(covered[claim.info.name], claim.full_shape[axis_of(claim)]))
          return claim.info.name + ": the ranks' ranges do not cover it exactly once";
  }
  for (const PackTensor& tensor : pack.tensors())
    if (!covered.contains(tensor.info.name)) return tensor.info.name + " is in no rank folder";
  return "";
}

}  // namespace tandem
