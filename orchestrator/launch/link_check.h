#pragma once

#include <stop_token>
#include <vector>

#include "orchestrator/fabric/link_report.h"
#include "orchestrator/launch/nodes.h"
#include "orchestrator/plan/plan.h"

namespace tandem::launch {

/// Measures the links that the ranks of a plan will use: between every two nodes, or, when all ranks share one node,
/// over that node's own address. Graded against the recipe's hardware.link. One rank has no link.
/// @throws Error  kind `link`, when a node cannot be reached by another; a slow link is a grade, not an error
std::vector<fabric::LinkReport> measure_links(Nodes& nodes, const Plan& plan, const Recipe& recipe,
                                              std::stop_token stop);

/// @throws Error  kind `link`, when a report's grade is `fail`
void require_links(const std::vector<fabric::LinkReport>& reports);

}  // namespace tandem::launch
