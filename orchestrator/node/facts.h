#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "orchestrator/plan/plan.h"

namespace tandem::node {

/// What a controller wants to know of a node before it plans.
struct ProbeRequest {
  std::string name;                                   ///< of the node in the cluster
  std::string hub_cache, ranks_folder, state_folder;  ///< "" = this node's defaults
  std::string job;                                    ///< whose ranks may run already
  std::string repo, commit;                           ///< of the pack, as far as known
  std::vector<std::string> programs;                  ///< of foreign engines, absolute paths
};

/// Looks at this machine.
NodeFacts gather_facts(const ProbeRequest& request);

/// tandem-runtime: $TANDEM_RUNTIME, beside this program, or in PATH; "" when there is none.
std::string find_runtime();

nlohmann::json to_json(const ProbeRequest& request);
ProbeRequest probe_request_from_json(const nlohmann::json& json);
nlohmann::json to_json(const NodeFacts& facts);
NodeFacts node_facts_from_json(const nlohmann::json& json);

}  // namespace tandem::node
