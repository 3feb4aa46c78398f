#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "kernels/mla_cache.h"
#include "runtime/pack/linear.h"

namespace tandem {

// The weights of a Ling model on one rank, named as in config.json and the checkpoint. Vectors are fp32; matrices are
// as the pack stores them. Under tensor parallelism widths are this rank's: heads, intermediate sizes and rows of the
// head are divided by world_size, hidden_size never is. Nothing here owns memory: see LingPack.

/// A table of numbers that is looked up or multiplied as it is stored.
struct PlainMatrix {
  const void* data = nullptr;  // (rows, columns), aligned to its elements
  FloatFormat format = FloatFormat::bf16;
};

struct KdaWeights {
  std::vector<Linear> qkv_proj;   // one fused linear, or q_proj, k_proj, v_proj: outputs side by side, q first
  const float* conv1d = nullptr;  // (short_conv_kernel_size, 3 * kda_width), channels of q, k, v
  Linear f_proj;
  Linear b_proj;
  Linear g_proj;
  const float* A_log = nullptr;    // (heads)
  const float* dt_bias = nullptr;  // (kda_width)
  const float* o_norm = nullptr;   // (head_dim)
  Linear o_proj;                   // a partial sum on each rank
};

struct MlaWeights {
  std::optional<Linear> q_a_proj;         // none: queries come straight from q_proj
  const float* q_a_layernorm = nullptr;   // (q_lora_rank)
  Linear q_b_proj;                        // q_proj without q_a_proj
  Linear kv_a_proj_with_mqa;              // kv_lora_rank + qk_rope_head_dim outputs
  const float* kv_a_layernorm = nullptr;  // (kv_lora_rank)
  MlaExpandWeights kv_b_proj;
  Linear g_proj;  // a gate a head
  Linear dense;   // a partial sum on each rank
};

struct MlpWeights {
  Linear gate_proj;
  Linear up_proj;
  Linear down_proj;  // a partial sum on each rank
};

struct MoeWeights {
  PlainMatrix gate;                    // (num_experts, hidden_size)
  const float* expert_bias = nullptr;  // (num_experts), or null
  std::vector<MlpWeights> experts;
  float experts_swiglu_limit = 0;  // 0: none
  std::optional<MlpWeights> shared_experts;
  float shared_swiglu_limit = 0;
};

struct DenseMlpWeights {
  MlpWeights mlp;
  float swiglu_limit = 0;
};

struct LayerWeights {
  const float* input_layernorm = nullptr;  // (hidden_size)
  std::variant<KdaWeights, MlaWeights> attention;
  const float* post_attention_layernorm = nullptr;  // (hidden_size)
  std::variant<DenseMlpWeights, MoeWeights> mlp;
};

struct MtpWeights {
  const float* enorm = nullptr;
  const float* hnorm = nullptr;
  Linear eh_proj;  // (2 * hidden_size -> hidden_size), the embedding first
  LayerWeights layer;
  const float* final_layernorm = nullptr;
};

struct LingWeights {
  PlainMatrix word_embeddings;       // (vocab_size, hidden_size), whole on every rank
  std::vector<LayerWeights> layers;  // num_hidden_layers
  const float* norm = nullptr;
  Linear lm_head;  // this rank's part of the vocabulary, from first_token
  int64_t lm_head_first_token = 0;
  std::optional<MtpWeights> mtp;
};

}  // namespace tandem
