#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

/// The one entry of `architectures` that this version knows: Ling-3.x.
inline constexpr const char* kLingArchitecture = "BailingMoeV3ForCausalLM";

/// YaRN, from config.json's `rope_scaling` (type or rope_type "yarn").
struct YarnConfig {
  double factor = 1.0;
  int64_t original_max_position_embeddings = 0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double mscale = 1.0;
  double mscale_all_dim = 0.0;
  std::optional<double> attention_factor;
};

/// config.json of BailingMoeV3ForCausalLM (Ling-3.x). Fields keep their names there; every number comes from the file,
/// and all are within bounds that make the products of shapes safe in int64_t.
struct LingConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int num_hidden_layers = 0;
  int num_attention_heads = 0;  ///< of KDA and MLA alike
  int64_t head_dim = 0;         ///< KDA key and value size a head
  int layer_group_size = 0;     ///< the last layer of a group is MLA
  int first_k_dense_replace = 0;
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  int64_t max_position_embeddings = 0;
  // KDA
  int short_conv_kernel_size = 0;
  bool kda_safe_gate = true;
  double kda_lower_bound = -5.0;
  // MLA
  std::optional<int64_t> q_lora_rank;  ///< none: queries come straight from q_proj
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0;
  int64_t qk_rope_head_dim = 0;
  int64_t v_head_dim = 0;
  double rope_theta = 0;
  std::optional<YarnConfig> rope_scaling;
  // MoE
  int num_experts = 0;
  int num_experts_per_tok = 0;
  int num_shared_experts = 0;
  int64_t moe_intermediate_size = 0;
  int64_t moe_shared_expert_intermediate_size = 0;  ///< of one shared expert
  int n_group = 1;
  int topk_group = 1;
  bool norm_topk_prob = true;
  double routed_scaling_factor = 1.0;
  bool moe_router_enable_expert_bias = true;
  std::vector<double> expert_swiglu_limit_list;        ///< empty, or one entry a layer; 0 = no clamp
  std::vector<double> share_expert_swiglu_limit_list;  ///< of the shared experts
  // MTP
  int num_nextn_predict_layers = 0;
  // tokens
  std::vector<int64_t> eos_token_id;
  std::optional<int64_t> pad_token_id;

  int64_t qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  int64_t kda_width() const { return num_attention_heads * head_dim; }
  int64_t shared_intermediate_size() const { return num_shared_experts * moe_shared_expert_intermediate_size; }
  int num_layers_with_mtp() const { return num_hidden_layers + num_nextn_predict_layers; }

  bool is_mtp(int layer) const { return layer >= num_hidden_layers; }
  /// MLA closes each group; a ragged last group and the MTP layers are MLA throughout.
  bool is_mla(int layer) const;
  bool is_moe(int layer) const { return layer >= first_k_dense_replace; }
  /// SwiGLU clamp of a layer, 0 for none. MTP layers have none.
  double swiglu_limit(int layer, bool shared) const;
};

/// @param text   of config.json, at most 4 MiB
/// @param where  for messages, usually the path
/// @throws Error kind `pack`: not JSON, another architecture, a switch this implementation does not know (by name), a
///               number out of bounds. `quantization_config` is not looked at: tensors say how they are stored.
LingConfig parse_ling_config(std::string_view text, const std::string& where);

/// Reads DIR/config.json.
LingConfig read_ling_config(const std::filesystem::path& pack_folder);

/// Shapes of published models, for planning before anything is downloaded. Partly inferred from the sizes of published
/// packs; a pack's own config.json always replaces them.
/// @param model_name  as recipes spell it ("Ling-3.1-flash-1019"), upper or lower case; an "org/" in front is ignored
std::optional<LingConfig> published_ling_config(std::string_view model_name);

}  // namespace tandem
