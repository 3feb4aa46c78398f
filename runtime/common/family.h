#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/common/ling_config.h"

namespace tandem {

// The one table of a Ling model's tensors. The plan counts bytes with it, the splitter cuts by it, and the loader
// checks against it, so that the three cannot disagree.

/// What a tensor belongs to. The first seven are the keys of a recipe's `bits_per_weight`; the others stay 16 or 32
/// bit. All linears of the MTP layer are `mtp`, whatever their kind.
enum class Component {
  routed_experts,
  shared_experts,
  kda_attention,
  dense_mlp,
  mla_attention,
  head,
  mtp,
  embedding,
  router,
  other,  ///< norms, convolutions, A_log, dt_bias, b_proj, MLA's kv_b_proj and g_proj
};
inline constexpr int kNumComponents = 10;
inline constexpr int kNumQuantizedComponents = 7;

std::string_view component_name(Component component);
std::optional<Component> parse_component(std::string_view name);

/// How tensor parallelism cuts a tensor. A linear's plain weight is [out_features, in_features].
enum class Cut {
  whole,         ///< every rank has all of it
  out_features,  ///< axis 0 of a plain tensor; each rank computes its outputs from the whole input
  in_features,   ///< axis 1; each rank computes a partial sum of all outputs
};

/// One tensor of the checkpoint, or one quantized linear that stands for it.
struct Module {
  std::string name;            ///< "model.layers.3.attention.q_b_proj", "model.layers.0.attention.A_log"
  bool has_weight_suffix;      ///< the plain tensor is called name + ".weight"; false for A_log, dt_bias, expert_bias
  std::vector<int64_t> shape;  ///< of the plain tensor, of the whole model; linears [out_features, in_features]
  Component component;
  int layer;            ///< -1 outside the layers
  bool quantizable;     ///< may be stored as EXL3
  bool full_precision;  ///< fp32 in the family's own checkpoints (A_log, dt_bias, expert_bias); the rest 16 bit
  Cut cut;
  int64_t unit;   ///< rows or columns that stay together (a head, a channel): cuts fall on multiples of it
  int64_t units;  ///< how many; world_size must divide it
  /// A converter may store this module and its siblings as one, along axis 0 ("...attention.qkv_proj"); "" if never.
  std::string fused_name;
  int fused_part = 0;  ///< its place there: q 0, k 1, v 2
  int fused_parts = 1;

  std::string tensor_name() const { return has_weight_suffix ? name + ".weight" : name; }
  int64_t elements() const;
};

/// All modules of a model, in layer order.
class ModuleTable {
 public:
  explicit ModuleTable(const LingConfig& config);

  const std::vector<Module>& modules() const { return modules_; }
  /// By module name without ".weight"; null when the model has no such module.
  const Module* find(std::string_view name) const;
  /// The parts of a fused module ("model.layers.0.attention.qkv_proj"), in row order; empty when it is not one.
  std::vector<const Module*> find_fused(std::string_view fused_name) const;
  /// The config says that the head shares the embedding's matrix: packs may then lack `lm_head`. If they have it, it
  /// counts.
  bool is_head_tied() const { return is_head_tied_; }

 private:
  std::vector<Module> modules_;
  std::vector<int32_t> by_name_;
  std::vector<int32_t> by_fused_name_;
  bool is_head_tied_ = false;
};

/// Bits per weight of each component as recipes state them; 16 = not quantized.
struct ComponentBits {
  std::array<double, kNumComponents> bits{16, 16, 16, 16, 16, 16, 16, 16, 16, 16};

  double& operator[](Component c) { return bits[static_cast<size_t>(c)]; }
  double operator[](Component c) const { return bits[static_cast<size_t>(c)]; }
};

/// Bytes by component. File headers and the tokenizer's files are not counted (below 0.1 %).
struct ComponentBytes {
  std::array<int64_t, kNumComponents> bytes{};

  int64_t& operator[](Component c) { return bytes[static_cast<size_t>(c)]; }
  int64_t operator[](Component c) const { return bytes[static_cast<size_t>(c)]; }
  int64_t total() const;
};

/// Weights of one rank; with world_size 1 those of the pack. A quantized linear k x n takes k n bits / 8 for the codes
/// (k and n padded to multiples of 128), 2 (k + n) for the scales, and 4 for the codebook marker.
/// The word embeddings are whole on every rank: one look-up instead of an exchange per token, for 0.6 GiB a rank more
/// at Ling-3.1-flash's size.
ComponentBytes weight_bytes(const LingConfig& config, const ComponentBits& bits, int world_size = 1);

/// Mean bits of the linears that a converter budgets (head and MTP left out), as packs are named.
double average_bits_per_weight(const LingConfig& config, const ComponentBits& bits);

/// Bytes of MLA cache a token takes on every rank, trunk and MTP layers together. The latent is not cut.
/// @param element_bytes  2 for bf16, 4 for fp32
int64_t kv_bytes_per_token(const LingConfig& config, int element_bytes);

/// KDA states (fp32) and convolution history of one sequence on one rank.
int64_t recurrent_bytes_per_slot(const LingConfig& config, int element_bytes, int world_size);

/// Why the model cannot be cut for `world_size` ranks, one sentence a reason; empty when it can.
/// @param quantized  also require the 128-wide blocks of EXL3 to stay whole
std::vector<std::string> why_not_divisible(const LingConfig& config, int world_size, bool quantized);

}  // namespace tandem
