#include "runtime/common/family.h"

#include <algorithm>
#include <numeric>

namespace tandem {
namespace {

constexpr std::array<std::string_view, kNumComponents> kComponentNames{
    "routed_experts", "shared_experts", "kda_attention", "dense_mlp", "mla_attention", "head", "mtp",
    "embedding",      "router",         "other"};

constexpr int64_t kBlock = 128;  ///< EXL3's rotations work in blocks of this many rows and columns

/// Appends the modules of one layer after another. Every method is one row or a few of the architecture's table.
class TableBuilder {
 public:
  explicit TableBuilder(const LingConfig& config) : c_(config) {}

  std::vector<Module> build() {
    add("model.word_embeddings", {c_.vocab_size, c_.hidden_size}, Component::embedding);
    for (layer_ = 0; layer_ < c_.num_layers_with_mtp(); ++layer_) {
      prefix_ = "model.layers." + std::to_string(layer_) + ".";
      norm(prefix_ + "input_layernorm", c_.hidden_size);
      norm(prefix_ + "post_attention_layernorm", c_.hidden_size);
      if (c_.is_mla(layer_))
        mla();
      else
        kda();
      if (c_.is_moe(layer_))
        moe();
      else
        mlp("mlp.", c_.intermediate_size, Component::dense_mlp);
      if (c_.is_mtp(layer_)) mtp();
    }
    layer_ = -1;
    norm("model.norm", c_.hidden_size);
    Module& head = add("lm_head", {c_.vocab_size, c_.hidden_size}, Component::head);
    head.quantizable = true;
    cut(head, Cut::out_features, block_or_all(c_.vocab_size), c_.vocab_size);
    return std::move(modules_);
  }

 private:
  Module& add(std::string name, std::vector<int64_t> shape, Component component) {
    modules_.push_back({.name = std::move(name),
                        .has_weight_suffix = true,
                        .shape = std::move(shape),
                        .component = component,
                        .layer = layer_,
                        .quantizable = false,
                        .full_precision = false,
                        .cut = Cut::whole,
                        .unit = 1,
                        .units = 1,
                        .fused_name = ""});
    return modules_.back();
  }

  Module& linear(const std::string& leaf, int64_t out, int64_t in, Component component) {
    Module& m = add(prefix_ + leaf, {out, in}, c_.is_mtp(layer_) ? Component::mtp : component);
    m.quantizable = true;
    return m;
  }

  void norm(std::string name, int64_t width) { add(std::move(name), {width}, Component::other); }

  static void cut(Module& m, Cut how, int64_t unit, int64_t features) {
    m.cut = how;
    m.unit = unit;
    m.units = features / unit;
  }

  void by_head(Module& m, Cut how, int64_t unit) const { cut(m, how, unit, unit * c_.num_attention_heads); }

  /// A width that is no multiple of 128 ends in a padded block, which cannot be shared out.
  static int64_t block_or_all(int64_t width) { return width % kBlock == 0 ? kBlock : width; }

  void kda() {
    const std::string at = "attention.";
    const int64_t width = c_.kda_width();
    constexpr std::string_view kLetters = "qkv";
    for (int part = 0; part < 3; ++part) {
      Module& m =
          linear(at + kLetters[static_cast<size_t>(part)] + "_proj", width, c_.hidden_size, Component::kda_attention);
      by_head(m, Cut::out_features, c_.head_dim);
      fuse(m, at + "qkv_proj", part);
    }
    for (int part = 0; part < 3; ++part) {
      Module& m = add(prefix_ + at + kLetters[static_cast<size_t>(part)] + "_conv1d",
                      {width, 1, c_.short_conv_kernel_size}, Component::other);
      by_head(m, Cut::out_features, c_.head_dim);
      fuse(m, at + "conv1d", part);
    }
    for (const char* leaf : {"f_proj", "g_proj"})
      by_head(linear(at + leaf, width, c_.hidden_size, Component::kda_attention), Cut::out_features, c_.head_dim);
    by_head(add(prefix_ + at + "b_proj", {c_.num_attention_heads, c_.hidden_size}, Component::other), Cut::out_features,
            1);
    by_head(raw(at + "A_log", c_.num_attention_heads, Component::other), Cut::out_features, 1);
    by_head(raw(at + "dt_bias", width, Component::other), Cut::out_features, c_.head_dim);
    norm(prefix_ + at + "o_norm", c_.head_dim);
    by_head(linear(at + "o_proj", c_.hidden_size, width, Component::kda_attention), Cut::in_features, c_.head_dim);
  }

  void mla() {
    const std::string at = "attention.";
    const int64_t heads = c_.num_attention_heads;
    const Component component = Component::mla_attention;
    const int64_t q_rows = heads * c_.qk_head_dim();
    if (c_.q_lora_rank) {
      linear(at + "q_a_proj", *c_.q_lora_rank, c_.hidden_size, component);
      norm(prefix_ + at + "q_a_layernorm", *c_.q_lora_rank);
      by_head(linear(at + "q_b_proj", q_rows, *c_.q_lora_rank, component), Cut::out_features, c_.qk_head_dim());
    } else {
      by_head(linear(at + "q_proj", q_rows, c_.hidden_size, component), Cut::out_features, c_.qk_head_dim());
    }
    // Every rank needs the whole latent for its heads.
    linear(at + "kv_a_proj_with_mqa", c_.kv_lora_rank + c_.qk_rope_head_dim, c_.hidden_size, component);
    norm(prefix_ + at + "kv_a_layernorm", c_.kv_lora_rank);
    const int64_t kv_rows = c_.qk_nope_head_dim + c_.v_head_dim;
    by_head(add(prefix_ + at + "kv_b_proj", {heads * kv_rows, c_.kv_lora_rank}, Component::other), Cut::out_features,
            kv_rows);
    by_head(add(prefix_ + at + "g_proj", {heads, c_.hidden_size}, Component::other), Cut::out_features, 1);
    by_head(linear(at + "dense", c_.hidden_size, heads * c_.v_head_dim, component), Cut::in_features, c_.v_head_dim);
  }

  void mlp(const std::string& at, int64_t width, Component component) {
    const int64_t unit = block_or_all(width);
    for (const char* leaf : {"gate_proj", "up_proj"})
      cut(linear(at + leaf, width, c_.hidden_size, component), Cut::out_features, unit, width);
    cut(linear(at + "down_proj", c_.hidden_size, width, component), Cut::in_features, unit, width);
  }

  void moe() {
    add(prefix_ + "mlp.gate", {c_.num_experts, c_.hidden_size}, Component::router);
    if (c_.moe_router_enable_expert_bias) raw("mlp.gate.expert_bias", c_.num_experts, Component::router);
    for (int e = 0; e < c_.num_experts; ++e)
      mlp("mlp.experts." + std::to_string(e) + ".", c_.moe_intermediate_size, Component::routed_experts);
    if (c_.num_shared_experts > 0) mlp("mlp.shared_experts.", c_.shared_intermediate_size(), Component::shared_experts);
  }

  void mtp() {
    for (const char* leaf : {"enorm", "hnorm", "final_layernorm"}) norm(prefix_ + leaf, c_.hidden_size);
    linear("eh_proj", c_.hidden_size, 2 * c_.hidden_size, Component::mtp);
  }

  /// A parameter that is no module of its own: stored without ".weight", in fp32.
  Module& raw(const std::string& leaf, int64_t width, Component component) {
    Module& m = add(prefix_ + leaf, {width}, component);
    m.has_weight_suffix = false;
    m.full_precision = true;
    return m;
  }

  void fuse(Module& m, const std::string& leaf, int part) const {
    m.fused_name = prefix_ + leaf;
    m.fused_part = part;
    m.fused_parts = 3;
  }

  const LingConfig& c_;
  int layer_ = -1;
  std::string prefix_;
  std::vector<Module> modules_;
};

std::vector<int32_t> sorted_index(const std::vector<Module>& modules, const auto& less) {
  std::vector<int32_t> order(modules.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return less(modules[a], modules[b]); });
  return order;
}

int64_t pad_to_block(int64_t n) {
  return (n + kBlock - 1) / kBlock * kBlock;
}

/// Bytes of one module on one rank.
int64_t module_bytes(const Module& m, double bits, int world_size) {
  if (!m.quantizable || bits >= 16) {
    const int64_t bytes = m.elements() * (m.full_precision ? 4 : 2);
    return m.cut == Cut::whole ? bytes : bytes / world_size;
  }
  int64_t out = pad_to_block(m.shape[0]);
  int64_t in = pad_to_block(m.shape[1]);
  if (m.cut == Cut::out_features) out /= world_size;
  if (m.cut == Cut::in_features) in /= world_size;
  constexpr int64_t kScaleBytes = 2;   // of suh and svh, an element
  constexpr int64_t kMarkerBytes = 4;  // the codebook's multiplier
  return static_cast<int64_t>(static_cast<double>(out * in) * bits / 8.0) + kScaleBytes * (out + in) + kMarkerBytes;
}

}  // namespace

std::string_view component_name(Component component) {
  return kComponentNames[static_cast<size_t>(component)];
}

std::optional<Component> parse_component(std::string_view name) {
  const auto it = std::find(kComponentNames.begin(), kComponentNames.end(), name);
  if (it == kComponentNames.end()) return std::nullopt;
  return static_cast<Component>(it - kComponentNames.begin());
}

int64_t Module::elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

ModuleTable::ModuleTable(const LingConfig& config)
    : modules_(TableBuilder(config).build()),
      by_name_(sorted_index(modules_, [](const Module& a, const Module& b) { return a.name < b.name; })),
      is_head_tied_(config.tie_word_embeddings) {
  for (const int32_t i : sorted_index(modules_, [](const Module&a, const Module&b) {
         return a.fused_name != b.fused_name ? a.fused_name < b.fused_name : a.fused_part < b.fused_part;
       }))
    if (!modules_[static_cast<size_t>(i)].fused_name.empty()) by_fused_name_.push_back(i);
}

const Module* ModuleTable::find(std::string_view name) const {
  const auto it = std::lower_bound(by_name_.begin(), by_name_.end(), name, [&](int32_t i, std::string_view key) {
    return modules_[static_cast<size_t>(i)].name < key;
  });
  if (it == by_name_.end()) return nullptr;
  const Module& m = modules_[static_cast<size_t>(*it)];
  return m.name == name ? &m : nullptr;
}

std::vector<const Module*> ModuleTable::find_fused(std::string_view fused_name) const {
  auto it = std::lower_bound(
      by_fused_name_.begin(), by_fused_name_.end(), fused_name,
      [&](int32_t i, std::string_view key) { return modules_[static_cast<size_t>(i)].fused_name < key; });
  std::vector<const Module*> parts;
  for (; it != by_fused_name_.end() && modules_[static_cast<size_t>(*it)].fused_name == fused_name; ++it)
    parts.push_back(&modules_[static_cast<size_t>(*it)]);
  return parts;
}

int64_t ComponentBytes::total() const {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

ComponentBytes weight_bytes(const LingConfig& config, const ComponentBits& bits, int world_size) {
  ComponentBytes sum;
  for (const Module& m : TableBuilder(config).build())
    sum[m.component] += module_bytes(m, bits[m.component], world_size);
  return sum;
}

double average_bits_per_weight(const LingConfig& config, const ComponentBits& bits) {
  double weights = 0, total_bits = 0;
  for (const Module& m : TableBuilder(config).build()) {
    if (!m.quantizable || m.component == Component::head || m.component == Component::mtp) continue;
    weights += static_cast<double>(m.elements());
    total_bits += static_cast<double>(m.elements()) * bits[m.component];
  }
  return weights > 0 ? total_bits / weights : 0.0;
}

int64_t kv_bytes_per_token(const LingConfig& config, int element_bytes) {
  int64_t mla_layers = 0;
  for (int layer = 0; layer < config.num_layers_with_mtp(); ++layer) mla_layers += config.is_mla(layer);
  return mla_layers * (config.kv_lora_rank + config.qk_rope_head_dim) * element_bytes;
}

int64_t recurrent_bytes_per_slot(const LingConfig& config, int element_bytes, int world_size) {
  const int64_t heads = config.num_attention_heads / world_size;
  const int64_t state = heads * config.head_dim * config.head_dim * static_cast<int64_t>(sizeof(float));
  const int64_t history = (config.short_conv_kernel_size - 1) * 3 * heads * config.head_dim * element_bytes;
  int64_t kda_layers = 0;
  for (int layer = 0; layer < config.num_layers_with_mtp(); ++layer) kda_layers += !config.is_mla(layer);
  return kda_layers * (state + history);
}

std::vector<std::string> why_not_divisible(const LingConfig& config, int world_size, bool quantized) {
  if (world_size < 1 || world_size > 1024)
    return {"world_size is " + std::to_string(world_size) + ", expected 1 to 1024"};
  if (world_size == 1) return {};
  std::vector<std::string> reasons;
  const std::string ranks = std::to_string(world_size) + " ranks";
  const int64_t heads = config.num_attention_heads;
  if (heads % world_size != 0) {
    reasons.push_back("num_attention_heads " + std::to_string(heads) + " does not divide by " + ranks);
  } else if (quantized) {
    const auto check_heads = [&](const char* what, int64_t head_rows) {
      const int64_t rows = heads / world_size * head_rows;
      if (rows % kBlock != 0)
        reasons.push_back(std::string(what) + ": " + std::to_string(heads / world_size) + " heads a rank of " +
                          std::to_string(head_rows) + " are " + std::to_string(rows) +
                          " channels, not a multiple of EXL3's block of 128");
    };
    check_heads("head_dim (KDA)", config.head_dim);
    check_heads("qk_nope_head_dim + qk_rope_head_dim (MLA queries)", config.qk_head_dim());
    check_heads("v_head_dim (MLA)", config.v_head_dim);
  }
  const auto check_width = [&](const char* what, int64_t width) {
    if (width % kBlock != 0)
      reasons.push_back(std::string(what) + " " + std::to_string(width) + " is not a multiple of 128");
    else if (width / kBlock % world_size != 0)
      reasons.push_back(std::string(what) + " " + std::to_string(width) + " has " + std::to_string(width / kBlock) +
                        " blocks of 128, which " + ranks + " cannot share evenly");
  };
  if (config.first_k_dense_replace > 0) check_width("intermediate_size", config.intermediate_size);
  if (config.first_k_dense_replace < config.num_layers_with_mtp()) {
    check_width("moe_intermediate_size", config.moe_intermediate_size);
    if (config.num_shared_experts > 0) check_width("shared expert width", config.shared_intermediate_size());
  }
  check_width("vocab_size", config.vocab_size);
  return reasons;
}

}  // namespace tandem
