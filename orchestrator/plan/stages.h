#pragma once

#include <vector>

#include "orchestrator/plan/plan.h"

namespace tandem {

// What is left to do, given the rest of the plan. Inside orchestrator/plan only.

/// Ranks whose folder is not there yet.
std::vector<int> missing_rank_folders(const Plan& plan, const std::vector<NodeFacts>& facts);

/// The five stages in running order, each with the content key of its result and whether that is true already.
/// @param plan  everything but stages and status is settled
std::vector<PlannedStage> plan_stages(const Plan& plan, const Recipe& recipe, const std::vector<NodeFacts>& facts);

}  // namespace tandem
