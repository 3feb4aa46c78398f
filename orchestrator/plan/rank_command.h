#pragma once

#include <string>
#include <vector>

#include "orchestrator/plan/plan.h"

namespace tandem {

// Command lines of ranks: pure functions from settled values to argv and environment. Inside orchestrator/plan only.

/// "host:port", with brackets around IPv6 addresses.
std::string host_port(const std::string& host, int port);

struct RankSettings {
  const Recipe& recipe;
  const Cluster& cluster;
  const Plan& plan;  ///< ports, addresses, context are settled
  const PlannedRank& rank;
  int threads = 1;
};

/// Arguments of `tandem-runtime` after the program.
std::vector<std::string> runtime_arguments(const RankSettings& settings);
/// Arguments of a foreign engine, placeholders filled in.
std::vector<std::string> command_arguments(const RankSettings& settings);
/// Variables set for the rank: the recipe's (foreign engines), then the owner's, then the device.
std::map<std::string, std::string> rank_environment(const RankSettings& settings);

}  // namespace tandem
