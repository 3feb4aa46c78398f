#pragma once

#include <atomic>
#include <filesystem>
#include <optional>

#include "orchestrator/plan/lock.h"
#include "orchestrator/plan/plan.h"

namespace tandem {

/// Where make_plan's knowledge of the pack comes from. The one place of this room that reads files or asks the hub.
struct PackFactsOptions {
  bool offline = false;             ///< ask no server: what the cache holds must do
  std::filesystem::path hub_cache;  ///< "" = the default one
  std::optional<Lock> lock;         ///< then the hub is not asked which commit and files these are
};

/// The pack's commit, files and shapes, as far as they can be known without downloading weights: from a folder, from a
/// whole snapshot in the cache, else from the hub. What a branch is now, the hub is asked first; when it does not
/// answer, a whole snapshot of that branch serves, and the note says so.
/// @throws Error  kind `pack` for a broken folder, `fetch` from the hub, `interrupted`
PackFacts gather_pack_facts(const Recipe& recipe, const Cluster& cluster, const PackFactsOptions& options,
                            const std::atomic<bool>* cancel = nullptr);

}  // namespace tandem
