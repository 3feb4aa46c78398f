#pragma once

#include <atomic>
#include <functional>
#include <iosfwd>

#include "orchestrator/plan/pack_facts.h"
#include "orchestrator/plan/plan.h"
#include "orchestrator/recipe/load.h"

namespace tandem {

/// Asks every node of the cluster for its facts, in order. The node room's; not called offline.
using AskNodes = std::function<std::vector<NodeFacts>(const Recipe&, const Cluster&, const PackFacts&)>;

struct PlanOptions {
  LoadOptions load;
  bool offline = false;  ///< look at no machine and ask no server
};

/// A plan with what it was made from: what `plan` prints and `up` executes.
struct PreparedPlan {
  LoadedRecipe loaded;
  std::optional<Lock> lock;
  PackFacts pack;
  Cluster cluster;  ///< as planned; offline it may be an assumed one
  std::vector<NodeFacts> facts;
  Plan plan;
};

/// Loads the recipe and its lock, gathers facts, and plans.
/// @throws Error  of kinds recipe, usage, pack, fetch, node, interrupted; a plan that is blocked is no error here
PreparedPlan prepare_plan(const PlanOptions& options, const AskNodes& ask_nodes,
                          const std::atomic<bool>* cancel = nullptr);

/// `tandem plan`: prints the plan. @return 0 nothing to do, 10 changes, 2 blocked
int plan_command(const PlanOptions& options, bool json, const AskNodes& ask_nodes, std::ostream& out,
                 const std::atomic<bool>* cancel = nullptr);

struct LockOptions {
  LoadOptions load;
  bool check = false;  ///< write nothing; a missing or different lock is an error
};

/// `tandem lock`: asks the hub for the pack's commit and every file's size and sha256 (or hashes a folder's files), and
/// writes them beside the recipe.
/// @throws Error  kind `recipe` with `check`; fetch, pack, interrupted
void lock_command(const LockOptions& options, bool json, std::ostream& out, const std::atomic<bool>* cancel = nullptr);

}  // namespace tandem
