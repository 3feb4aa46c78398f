#pragma once

#include <optional>

#include "orchestrator/plan/plan.h"
#include "runtime/common/ling_config.h"

namespace tandem {

// Sizes for the plan, as functions of the model's shapes. Inside orchestrator/plan only.

/// The shapes of the recipe's model: the pack's own config.json, else what is published for a model of that name.
/// @throws Error  kind `pack`, when the config is not one the runtime can serve
std::optional<LingConfig> find_config(const Recipe& recipe, const PackFacts& pack);

/// Weights from the recipe's bits per component and the model's shapes. `world_size` must divide the model.
WeightSizes estimate_weights(const LingConfig& config, const PackSection& pack, int world_size);
/// Weights without knowing the model: the published download divided by the ranks; all zero when not stated.
WeightSizes estimate_weights(const PackSection& pack, int world_size);

/// Memory of one rank of our own runtime, floor left out.
MemoryTable rank_memory(const LingConfig& config, const EngineSection& engine, int64_t weights_bytes, int world_size);

}  // namespace tandem
