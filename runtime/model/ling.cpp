#include "runtime/model/ling.h"

#include <algorithm>
#include <cmath>

#include "runtime/model/ling_activations.h"

namespace tandem {
namespace {

RopeTable rope_table(const LingConfig& config) {
  RopeConfig rope{.rope_dim = config.qk_rope_head_dim, .theta = config.rope_theta};
  if (config.rope_scaling) {
    const YarnConfig& stored = *config.rope_scaling;
    YarnScaling yarn{.factor = stored.factor,
                     .original_max_position_embeddings = static_cast<double>(stored.original_max_position_embeddings),
                     .beta_fast = stored.beta_fast,
                     .beta_slow = stored.beta_slow,
                     .attention_factor = stored.attention_factor};
    // The family's code treats 0 like a missing value.
    if (stored.mscale != 0) yarn.mscale = stored.mscale;
    if (stored.mscale_all_dim != 0) yarn.mscale_all_dim = stored.mscale_all_dim;
    rope.yarn = yarn;
  }
  return build_rope_table(rope);
}

}  // namespace

Ling::Ling(const LingConfig& config, const LingWeights& weights, Operations& operations, Communicator& communicator,
           const ModelOptions& options)
    : config_(config),
      weights_(weights),
      operations_(operations),
      communicator_(communicator),
      kv_format_(options.kv_cache == KvCacheType::bf16 ? FloatFormat::bf16 : FloatFormat::fp32),
      eps_(static_cast<float>(config.rms_norm_eps)),
      heads_(config.num_attention_heads / communicator.world_size()),
      kda_width_(heads_ * config.head_dim),
      rope_table_(rope_table(config)) {
  const int64_t rows = options.prefill_chunk;
  const int64_t mlp_width = config.intermediate_size / communicator.world_size();
  const auto lay_out = [&](Arena& arena) {
    stream_.x = arena.take(rows * config.hidden_size);
    stream_.y = arena.take(rows * config.hidden_size);
    stream_.delta = arena.take(rows * config.hidden_size);
    if (weights.mtp) mtp_input_ = arena.take(rows * 2 * config.hidden_size);
    logits_ = arena.take(kLogitRows * weights.lm_head.out_features);
    half_layer_ = arena;
  };
  Arena measure;
  lay_out(measure);
  // Half layers run one after the other and share their memory.
  Arena kda = measure, mla = measure, mlp = measure, moe = measure;
  KdaActivations(kda, heads_, kda_width_, rows);
  MlaActivations(mla, config, heads_, rows);
  MlpActivations(mlp, mlp_width, rows);
  MoeActivations(moe, config, rows);
  memory_ = operations.allocate(4 * std::max({kda.used(), mla.used(), mlp.used(), moe.used()}));
  Arena arena(memory_.as<float>());
  lay_out(arena);
}

void Ling::trunk(const Batch& batch) {
  const int64_t rows = batch.rows();
  embed(batch, stream_.x);
  stream_.has_delta = false;
  for (int index = 0; index < config_.num_hidden_layers; ++index) {
    layer(weights_.layers[static_cast<size_t>(index)], batch, index, stream_);
  }
  norm(stream_, weights_.norm, rows, stream_.y);
  for (const Segment& segment : batch.segments) {
    operations_.copy(segment.caches->hidden, stream_.y + segment.first_row * config_.hidden_size,
                     segment.rows * config_.hidden_size * 4);
  }
}

void Ling::embed(const Batch& batch, float* y) {
  operations_.embedding({.rows = batch.rows(),
                         .hidden_size = config_.hidden_size,
                         .vocab_size = config_.vocab_size,
                         .table_rows = config_.vocab_size,
                         .format = weights_.word_embeddings.format,
                         .table = weights_.word_embeddings.data,
                         .tokens = batch.tokens.data(),
                         .y = y});
}

void Ling::mtp(const Batch& batch, const float* hidden, float* out) {
  const MtpWeights& mtp = *weights_.mtp;
  const int64_t rows = batch.rows();
  const int64_t hidden_size = config_.hidden_size;
  embed(batch, stream_.y);
  operations_.rms_norm({.rows = rows,
                        .width = hidden_size,
                        .eps = eps_,
                        .x = stream_.y,
                        .weight = mtp.enorm,
                        .y = mtp_input_,
                        .y_stride = 2 * hidden_size});
  operations_.rms_norm({.rows = rows,
                        .width = hidden_size,
                        .eps = eps_,
                        .x = hidden,
                        .weight = mtp.hnorm,
                        .y = mtp_input_ + hidden_size,
                        .y_stride = 2 * hidden_size});
  operations_.linear({.linear = &mtp.eh_proj, .rows = rows, .x = mtp_input_, .y = stream_.x});
  stream_.has_delta = false;
  layer(mtp.layer, batch, config_.num_hidden_layers, stream_);
  norm(stream_, mtp.final_layernorm, rows, out);
}

const float* Ling::lm_head(const float* hidden, int64_t rows) {
  operations_.linear({.linear = &weights_.lm_head, .rows = rows, .x = hidden, .y = logits_});
  return logits_;
}

void Ling::layer(const LayerWeights& weights, const Batch& batch, int index, Stream& stream) {
  const int64_t rows = batch.rows();
  norm(stream, weights.input_layernorm, rows, stream.y);
  if (const auto* kda_weights = std::get_if<KdaWeights>(&weights.attention)) {
    kda(*kda_weights, batch, index, stream.y, stream.delta);
  } else {
    mla(std::get<MlaWeights>(weights.attention), batch, index, stream.y, stream.delta);
  }
  sum_over_ranks(stream, rows);

  norm(stream, weights.post_attention_layernorm, rows, stream.y);
  if (const auto* moe_weights = std::get_if<MoeWeights>(&weights.mlp)) {
    moe(*moe_weights, rows, stream.y, stream.delta);
  } else {
    mlp(std::get<DenseMlpWeights>(weights.mlp), rows, stream.y, stream.delta);
  }
  sum_over_ranks(stream, rows);
}

void Ling::norm(Stream& stream, const float* weight, int64_t rows, float* y) {
  operations_.rms_norm({.rows = rows,
                        .width = config_.hidden_size,
                        .eps = eps_,
                        .x = stream.x,
                        .weight = weight,
                        .delta = stream.has_delta ? stream.delta : nullptr,
                        .sum = stream.has_delta ? stream.x : nullptr,
                        .y = y});
  stream.has_delta = false;
}

void Ling::sum_over_ranks(Stream& stream, int64_t rows) {
  communicator_.sum_in_rank_order(stream.delta, rows * config_.hidden_size);
  stream.has_delta = true;
}

// ---- KDA ----------------------------------------------------------------------------------------------------------

void Ling::kda(const KdaWeights& weights, const Batch& batch, int index, const float* x, float* out) {
  const int64_t rows = batch.rows();
  Arena arena = half_layer_;
  KdaActivations a(arena, heads_, kda_width_, rows);

  std::vector<LinearArgs> projections;
  int64_t column = 0;
  for (const Linear& part : weights.qkv_proj) {
    projections.push_back({.linear = &part, .rows = rows, .x = x, .y = a.raw + column, .y_stride = 3 * kda_width_});
    column += part.out_features;
  }
  projections.push_back({.linear = &weights.f_proj, .rows = rows, .x = x, .y = a.g});
  projections.push_back({.linear = &weights.b_proj, .rows = rows, .x = x, .y = a.beta});
  projections.push_back({.linear = &weights.g_proj, .rows = rows, .x = x, .y = a.gate});
  operations_.linear(projections);

  for (const Segment& segment : batch.segments) {
    auto& cache = std::get<KdaCache>(segment.caches->layers[static_cast<size_t>(index)]);
    if (batch.kind == PassKind::decode) {
      kda_decode(segment, weights, cache, a);
    } else {
      kda_prefill(segment, weights, cache, a);
    }
  }

  operations_.gated_rms_norm({.rows = rows,
                              .heads = heads_,
                              .width = config_.head_dim,
                              .eps = eps_,
                              .x = a.o,
                              .weight = weights.o_norm,
                              .gate = a.gate,
                              .y = a.o});
  operations_.linear({.linear = &weights.o_proj, .rows = rows, .x = a.o, .y = out});
}

KdaRows Ling::kda_rows(const float* qkv, const float* g, const float* beta, int64_t rows) const {
  return {.rows = rows,
          .k = qkv + kda_width_,
          .k_stride = 3 * kda_width_,
          .v = qkv + 2 * kda_width_,
          .v_stride = 3 * kda_width_,
          .g = g,
          .beta = beta};
}

void Ling::kda_inputs(const KdaWeights& weights, const Segment& segment, const KdaActivations& a, const float* history,
                      float* next_history, float* qkv, float* g, float* beta) {
  const int64_t channels = 3 * kda_width_;
  operations_.short_conv({.rows = segment.rows,
                          .channels = channels,
                          .taps = config_.short_conv_kernel_size,
                          .x = a.raw + segment.first_row * channels,
                          .weight = weights.conv1d,
                          .history = history,
                          .y = qkv,
                          .next_history = next_history});
  L2NormArgs normalize{.rows = segment.rows,
                       .heads = heads_,
                       .width = config_.head_dim,
                       .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim)),
                       .x = qkv,
                       .x_stride = channels,
                       .y = qkv,
                       .y_stride = channels};
  operations_.l2_norm(normalize);
  normalize.scale = 1.0f;
  normalize.x = normalize.y = qkv + kda_width_;
  operations_.l2_norm(normalize);
  operations_.kda_gate({.rows = segment.rows,
                        .heads = heads_,
                        .head_dim = config_.head_dim,
                        .bounded = config_.kda_safe_gate,
                        .lower_bound = static_cast<float>(config_.kda_lower_bound),
                        .a_log = weights.A_log,
                        .dt_bias = weights.dt_bias,
                        .f = a.g + segment.first_row * kda_width_,
                        .beta_logits = a.beta + segment.first_row * heads_,
                        .g = g,
                        .beta = beta});
}

void Ling::kda_decode(const Segment& segment, const KdaWeights& weights, KdaCache& cache, const KdaActivations& a) {
  const SequenceCaches& caches = *segment.caches;
  const int64_t channels = 3 * kda_width_;
  const KdaCache::Log& old_log = cache.logs[static_cast<size_t>(caches.current_log)];
  const KdaCache::Log& log = cache.logs[static_cast<size_t>(1 - caches.current_log)];
  // One row cannot be taken back, so it need not be applied twice.
  const bool commit = segment.rows == 1;
  if (caches.replay_rows > 0) {
    operations_.short_conv_advance(cache.history, old_log.raw, caches.replay_rows, channels,
                                   config_.short_conv_kernel_size, cache.history);
  }
  kda_inputs(weights, segment, a, cache.history, commit ? cache.history : nullptr, log.qkv, log.g, log.beta);
  if (!commit) operations_.copy(log.raw, a.raw + segment.first_row * channels, segment.rows * channels * 4);
  operations_.kda_step({.heads = heads_,
                        .key_dim = config_.head_dim,
                        .value_dim = config_.head_dim,
                        .replay = kda_rows(old_log.qkv, old_log.g, old_log.beta, caches.replay_rows),
                        .rows = kda_rows(log.qkv, log.g, log.beta, segment.rows),
                        .q = log.qkv,
                        .q_stride = channels,
                        .o = a.o + segment.first_row * kda_width_,
                        .state = cache.state,
                        .commit = commit});
}

void Ling::kda_prefill(const Segment& segment, const KdaWeights& weights, KdaCache& cache, const KdaActivations& a) {
  const SequenceCaches& caches = *segment.caches;
  const int64_t channels = 3 * kda_width_;
  if (caches.replay_rows > 0) {
    const KdaCache::Log& log = cache.logs[static_cast<size_t>(caches.current_log)];
    operations_.short_conv_advance(cache.history, log.raw, caches.replay_rows, channels, config_.short_conv_kernel_size,
                                   cache.history);
    operations_.kda_step({.heads = heads_,
                          .key_dim = config_.head_dim,
                          .value_dim = config_.head_dim,
                          .replay = kda_rows(log.qkv, log.g, log.beta, caches.replay_rows),
                          .state = cache.state});
  }
  float* qkv = a.qkv + segment.first_row * channels;
  float* g = a.g + segment.first_row * kda_width_;
  float* beta = a.beta + segment.first_row * heads_;
  kda_inputs(weights, segment, a, cache.history, cache.history, qkv, g, beta);
  operations_.kda_chunked({.heads = heads_,
                           .key_dim = config_.head_dim,
                           .value_dim = config_.head_dim,
                           .rows = kda_rows(qkv, g, beta, segment.rows),
                           .q = qkv,
                           .q_stride = channels,
                           .o = a.o + segment.first_row * kda_width_,
                           .state = cache.state});
}

// ---- MLA ----------------------------------------------------------------------------------------------------------

void Ling::mla(const MlaWeights& weights, const Batch& batch, int index, const float* x, float* out) {
  const int64_t rows = batch.rows();
  const int64_t latent_dim = config_.kv_lora_rank;
  const int64_t rope_dim = config_.qk_rope_head_dim;
  const int64_t kv_width = latent_dim + rope_dim;
  Arena arena = half_layer_;
  MlaActivations a(arena, config_, heads_, rows);

  std::vector<LinearArgs> projections{
      {.linear = &weights.kv_a_proj_with_mqa, .rows = rows, .x = x, .y = a.kv_a},
      {.linear = &weights.g_proj, .rows = rows, .x = x, .y = a.gate},
  };
  if (weights.q_a_proj) {
    projections.push_back({.linear = &*weights.q_a_proj, .rows = rows, .x = x, .y = a.q_a});
  } else {
    projections.push_back({.linear = &weights.q_b_proj, .rows = rows, .x = x, .y = a.q});
  }
  operations_.linear(projections);
  if (weights.q_a_proj) {
    operations_.rms_norm({.rows = rows,
                          .width = *config_.q_lora_rank,
                          .eps = eps_,
                          .x = a.q_a,
                          .weight = weights.q_a_layernorm,
                          .y = a.q_a});
    operations_.linear({.linear = &weights.q_b_proj, .rows = rows, .x = a.q_a, .y = a.q});
  }
  operations_.rms_norm({.rows = rows,
                        .width = latent_dim,
                        .eps = eps_,
                        .x = a.kv_a,
                        .x_stride = kv_width,
                        .weight = weights.kv_a_layernorm,
                        .y = a.kv_a,
                        .y_stride = kv_width});
  rotate(batch, a.kv_a + latent_dim, 1, kv_width, rope_dim);
  rotate(batch, a.q + config_.qk_nope_head_dim, heads_, heads_ * config_.qk_head_dim(), config_.qk_head_dim());

  for (const Segment& segment : batch.segments) mla_segment(weights, batch, segment, index, a);
  operations_.linear({.linear = &weights.dense, .rows = rows, .x = a.o, .y = out});
}

void Ling::rotate(const Batch& batch, float* x, int64_t heads, int64_t row_stride, int64_t head_stride) {
  operations_.rope({.rows = batch.rows(),
                    .heads = heads,
                    .table = &rope_table_,
                    .positions = batch.positions.data(),
                    .x = x,
                    .x_row_stride = row_stride,
                    .x_head_stride = head_stride,
                    .y = x,
                    .y_row_stride = row_stride,
                    .y_head_stride = head_stride});
}

void Ling::mla_segment(const MlaWeights& weights, const Batch& batch, const Segment& segment, int index,
                       const MlaActivations& a) {
  const bool is_mtp = config_.is_mtp(index);
  const MlaCache& cache =
      is_mtp ? segment.caches->mtp.front() : std::get<MlaCache>(segment.caches->layers[static_cast<size_t>(index)]);
  const int64_t latent_dim = config_.kv_lora_rank;
  const int64_t rope_dim = config_.qk_rope_head_dim;
  const int64_t first = segment.first_row;
  const int64_t first_position = batch.positions[static_cast<size_t>(first)];
  const int64_t value_bytes = float_format_bytes(kv_format_);
  const float* kv_a = a.kv_a + first * (latent_dim + rope_dim);

  operations_.mla_cache_append({.rows = segment.rows,
                                .width = latent_dim,
                                .x = kv_a,
                                .x_stride = latent_dim + rope_dim,
                                .format = kv_format_,
                                .y = cache.latent + first_position * latent_dim * value_bytes});
  operations_.mla_cache_append({.rows = segment.rows,
                                .width = rope_dim,
                                .x = kv_a + latent_dim,
                                .x_stride = latent_dim + rope_dim,
                                .format = kv_format_,
                                .y = cache.rope_key + first_position * rope_dim * value_bytes});

  const float scale = static_cast<float>(rope_table_.softmax_factor / std::sqrt(config_.qk_head_dim()));
  const MlaArgs args{.rows = segment.rows,
                     .heads = heads_,
                     .nope_dim = config_.qk_nope_head_dim,
                     .rope_dim = rope_dim,
                     .latent_dim = latent_dim,
                     .value_dim = config_.v_head_dim,
                     .first_position = first_position,
                     .scale = scale,
                     .q = a.q + first * heads_ * config_.qk_head_dim(),
                     .cache = {.format = kv_format_, .latent = cache.latent, .rope_key = cache.rope_key},
                     .kv_b = weights.kv_b_proj,
                     .gate_kind = MlaGate::head_wise,
                     .gate = a.gate + first * heads_,
                     .o = a.o + first * heads_ * config_.v_head_dim};
  if (batch.kind == PassKind::decode) {
    operations_.mla_decode(args);
  } else {
    operations_.mla_prefill(args);
  }
}

// ---- MLPs ---------------------------------------------------------------------------------------------------------

void Ling::mlp(const DenseMlpWeights& weights, int64_t rows, const float* x, float* out) {
  const int64_t width = weights.mlp.gate_proj.out_features;
  Arena arena = half_layer_;
  MlpActivations a(arena, width, rows);
  const LinearArgs projections[] = {
      {.linear = &weights.mlp.gate_proj, .rows = rows, .x = x, .y = a.gate},
      {.linear = &weights.mlp.up_proj, .rows = rows, .x = x, .y = a.up},
  };
  operations_.linear(projections);
  operations_.swiglu(
      {.rows = rows, .width = width, .limit = weights.swiglu_limit, .gate = a.gate, .up = a.up, .y = a.gate});
  operations_.linear({.linear = &weights.mlp.down_proj, .rows = rows, .x = a.gate, .y = out});
}

void Ling::moe(const MoeWeights& weights, int64_t rows, const float* x, float* out) {
  Arena arena = half_layer_;
  MoeActivations a(arena, config_, rows);
  operations_.router({.rows = rows,
                      .hidden_size = config_.hidden_size,
                      .num_experts = config_.num_experts,
                      .num_groups = config_.n_group,
                      .num_groups_chosen = config_.topk_group,
                      .num_experts_chosen = config_.num_experts_per_tok,
                      .normalize = config_.norm_topk_prob,
                      .scaling = static_cast<float>(config_.routed_scaling_factor),
                      .x = x,
                      .weight_format = weights.gate.format,
                      .weight = weights.gate.data,
                      .bias = weights.expert_bias,
                      .experts = a.experts,
                      .weights = a.weights});
  operations_.moe({.weights = &weights,
                   .rows = rows,
                   .hidden_size = config_.hidden_size,
                   .num_experts_chosen = config_.num_experts_per_tok,
                   .x = x,
                   .experts = a.experts,
                   .expert_weights = a.weights,
                   .y = out});
}

}  // namespace tandem
