#pragma once

#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/engine/engine.h"

namespace tandem {

/// The engine's numbers in Prometheus' text format, under vLLM's names where it has one, so that its dashboards work.
std::string prometheus_text(const std::string& model_name, const EngineStatus& status, const EngineMetrics& metrics,
                            int64_t context, const std::vector<RankStatus>& ranks);

}  // namespace tandem
