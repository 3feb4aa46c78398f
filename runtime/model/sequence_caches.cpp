#include "runtime/model/sequence_caches.h"

#include <utility>

namespace tandem {
namespace {

int64_t element_bytes(KvCacheType type) {
  return type == KvCacheType::bf16 ? 2 : 4;
}

int64_t num_mla_layers(const LingConfig& config, bool with_mtp) {
  int64_t count = with_mtp ? 1 : 0;
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) count += config.is_mla(layer) ? 1 : 0;
  return count;
}

/// Everything of a fixed size; a measuring arena gives its size.
void lay_out_fixed(const LingConfig& config, const ModelOptions& options, int world_size, bool with_mtp, Arena& arena,
                   float*& hidden, float*& mtp_hidden, std::vector<KdaCache>& kda) {
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (!config.is_mla(layer)) kda.emplace_back(config, world_size, arena);
  }
  hidden = arena.take(options.prefill_chunk * config.hidden_size);
  if (with_mtp) mtp_hidden = arena.take(options.prefill_chunk * config.hidden_size);
}

}  // namespace

KdaCache::KdaCache(const LingConfig& config, int world_size, Arena& arena) {
  const int64_t heads = config.num_attention_heads / world_size;
  const int64_t kda_width = heads * config.head_dim;
  state = arena.take(kda_width * config.head_dim);
  history = arena.take((config.short_conv_kernel_size - 1) * 3 * kda_width);
  for (Log& log : logs) {
    log.raw = arena.take(kMaxDecodeRows * 3 * kda_width);
    log.qkv = arena.take(kMaxDecodeRows * 3 * kda_width);
    log.g = arena.take(kMaxDecodeRows * kda_width);
    log.beta = arena.take(kMaxDecodeRows * heads);
  }
}

MlaCache::MlaCache(const LingConfig& config, const ModelOptions& options, Arena& arena) {
  // Guessed rows of the MTP layer may reach past the last token of the context.
  const int64_t rows = options.context + kMaxDecodeRows;
  const int64_t bytes = element_bytes(options.kv_cache);
  latent = reinterpret_cast<std::byte*>(arena.take((rows * config.kv_lora_rank * bytes + 3) / 4));
  rope_key = reinterpret_cast<std::byte*>(arena.take((rows * config.qk_rope_head_dim * bytes + 3) / 4));
}

SequenceCaches::SequenceCaches(const LingConfig& config, const ModelOptions& options, int world_size, bool with_mtp,
                               Operations& device)
    : operations(device), context(options.context) {
  fixed_memory = device.allocate(sequence_fixed_bytes(config, options, world_size, with_mtp));
  Arena fixed(fixed_memory.as<float>());
  std::vector<KdaCache> kda;
  lay_out_fixed(config, options, world_size, with_mtp, fixed, hidden, mtp_hidden, kda);

  Arena measure;
  for (int64_t i = 0; i < num_mla_layers(config, with_mtp); ++i) MlaCache(config, options, measure);
  latent_memory = device.allocate(measure.used() * 4);
  Arena latents(latent_memory.as<float>());

  auto next_kda = kda.begin();
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (config.is_mla(layer)) {
      layers.emplace_back(MlaCache(config, options, latents));
    } else {
      layers.emplace_back(*next_kda++);
    }
  }
  if (with_mtp) mtp.emplace_back(config, options, latents);
}

void SequenceCaches::clear() {
  // Latent rows need no clearing: nothing reads past the length.
  operations.clear(fixed_memory.as<void>(), fixed_memory.bytes());
  length = mtp_length = revocable_rows = replay_rows = 0;
}

int64_t sequence_fixed_bytes(const LingConfig& config, const ModelOptions& options, int world_size, bool with_mtp) {
  Arena measure;
  float* hidden = nullptr;
  float* mtp_hidden = nullptr;
  std::vector<KdaCache> kda;
  lay_out_fixed(config, options, world_size, with_mtp, measure, hidden, mtp_hidden, kda);
  return measure.used() * 4;
}

int64_t sequence_bytes_per_token(const LingConfig& config, const ModelOptions& options, bool with_mtp) {
  return num_mla_layers(config, with_mtp) * (config.kv_lora_rank + config.qk_rope_head_dim) *
         element_bytes(options.kv_cache);
}

}  // namespace tandem
