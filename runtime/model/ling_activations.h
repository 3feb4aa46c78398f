#pragma once

#include <cstdint>

#include "runtime/common/ling_config.h"
#include "runtime/model/arena.h"

namespace tandem {

// What the half layers of Ling compute on the way from their normed input to their output. One at a time is alive, so
// all start at the same place of the workspace.

struct KdaActivations {
  KdaActivations(Arena& arena, int64_t heads, int64_t width, int64_t rows)
      : raw(arena.take(rows * 3 * width)),
        qkv(arena.take(rows * 3 * width)),
        g(arena.take(rows * width)),
        beta(arena.take(rows * heads)),
        gate(arena.take(rows * width)),
        o(arena.take(rows * width)) {}

  float* raw;   // (rows, 3 * kda_width): q, k, v before the convolution
  float* qkv;   // (rows, 3 * kda_width): after it
  float* g;     // (rows, kda_width): f_proj's output, then the log decay
  float* beta;  // (rows, heads): b_proj's output, then the step size
  float* gate;  // (rows, kda_width): g_proj's output
  float* o;     // (rows, kda_width)
};

struct MlaActivations {
  MlaActivations(Arena& arena, const LingConfig& config, int64_t heads, int64_t rows)
      : q_a(arena.take(rows * config.q_lora_rank.value_or(0))),
        q(arena.take(rows * heads * config.qk_head_dim())),
        kv_a(arena.take(rows * (config.kv_lora_rank + config.qk_rope_head_dim))),
        gate(arena.take(rows * heads)),
        o(arena.take(rows * heads * config.v_head_dim)) {}

  float* q_a;   // (rows, q_lora_rank)
  float* q;     // (rows, heads, qk_nope_head_dim + qk_rope_head_dim)
  float* kv_a;  // (rows, kv_lora_rank + qk_rope_head_dim)
  float* gate;  // (rows, heads)
  float* o;     // (rows, heads, v_head_dim)
};

struct MlpActivations {
  MlpActivations(Arena& arena, int64_t width, int64_t rows)
      : gate(arena.take(rows * width)), up(arena.take(rows * width)) {}

  float* gate;  // (rows, intermediate_size of this rank)
  float* up;    // likewise
};

struct MoeActivations {
  MoeActivations(Arena& arena, const LingConfig& config, int64_t rows)
      : experts(reinterpret_cast<int32_t*>(arena.take(rows * config.num_experts_per_tok))),
        weights(arena.take(rows * config.num_experts_per_tok)) {}

  int32_t* experts;  // (rows, num_experts_per_tok)
  float* weights;    // (rows, num_experts_per_tok)
};

}  // namespace tandem
