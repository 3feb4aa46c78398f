#include "orchestrator/plan/memory.h"

#include <algorithm>

#include "runtime/common/error.h"
#include "runtime/common/family.h"

namespace tandem {
namespace {

// What the runtime works on at once while it reads a prompt.
constexpr int64_t kPrefillRows = 512;
constexpr int64_t kFloat = 4;
// Program, tokenizer, HTTP, thread stacks.
constexpr int64_t kProcessBytes = 64LL << 20;

ComponentBits component_bits(const PackSection& pack) {
  const auto average = pack.bits_per_weight.find("average");
  ComponentBits bits;
  for (int i = 0; i < kNumQuantizedComponents; ++i) {
    const auto component = static_cast<Component>(i);
    const auto own = pack.bits_per_weight.find(std::string(component_name(component)));
    if (own != pack.bits_per_weight.end()) {
      bits[component] = own->second;
    } else if (average != pack.bits_per_weight.end()) {
      bits[component] = average->second;
    }
  }
  return bits;
}

}  // namespace

std::optional<LingConfig> find_config(const Recipe& recipe, const PackFacts& pack) {
  if (!pack.config_json.empty()) return parse_ling_config(pack.config_json, "config.json of the pack");
  if (auto config = published_ling_config(recipe.model.name)) return config;
  return recipe.model.base_repo.empty() ? std::nullopt : published_ling_config(recipe.model.base_repo);
}

WeightSizes estimate_weights(const LingConfig& config, const PackSection& pack, int world_size) {
  const ComponentBits bits = component_bits(pack);
  const ComponentBytes whole = weight_bytes(config, bits);
  WeightSizes sizes;
  sizes.total_bytes = whole.total();
  for (int i = 0; i < kNumComponents; ++i) {
    const auto component = static_cast<Component>(i);
    sizes.component_bytes[std::string(component_name(component))] = whole[component];
  }
  const int64_t share = world_size == 1 ? whole.total() : weight_bytes(config, bits, world_size).total();
  sizes.rank_bytes.assign(static_cast<size_t>(world_size), share);
  return sizes;
}

WeightSizes estimate_weights(const PackSection& pack, int world_size) {
  WeightSizes sizes;
  sizes.total_bytes = pack.download_bytes;
  sizes.rank_bytes.assign(static_cast<size_t>(world_size), pack.download_bytes / world_size);
  return sizes;
}

MemoryTable rank_memory(const LingConfig& config, const EngineSection& engine, int64_t weights_bytes, int world_size) {
  const int element_bytes = engine.kv_cache == "fp32" ? 4 : 2;
  MemoryTable table;
  table.weights_bytes = weights_bytes;
  table.kv_bytes_per_token = kv_bytes_per_token(config, element_bytes);
  table.kv_bytes = table.kv_bytes_per_token * engine.context_tokens * engine.slots;
  table.state_bytes_per_slot = recurrent_bytes_per_slot(config, element_bytes, world_size);
  table.state_bytes = table.state_bytes_per_slot * engine.slots;

  // Rows of activations: the residual stream and its norm, then the wider of an attention's projections (q, k, v, decay
  // and gate) and an MLP's (gate, up and the chosen experts' outputs).
  const int64_t attention = 6 * config.kda_width() / world_size;
  const int64_t experts =
      config.num_experts_per_tok * (2 * config.moe_intermediate_size / world_size + config.hidden_size) +
      2 * config.shared_intermediate_size() / world_size;
  const int64_t dense = 2 * config.intermediate_size / world_size;
  const int64_t row_values = 4 * config.hidden_size + std::max({attention, experts, dense});
  const int64_t rows = std::min<int64_t>(kPrefillRows, engine.context_tokens);
  const int64_t logits = config.vocab_size * (1 + engine.mtp_depth) * engine.slots;
  table.workspace_bytes = kProcessBytes + kFloat * (rows * row_values + logits);
  // Each rank's partial sum and the sum itself, sent and received.
  if (world_size > 1) table.communication_bytes = kFloat * rows * config.hidden_size * (world_size + 1);
  return table;
}

}  // namespace tandem
