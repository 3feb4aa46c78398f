#pragma once

#include "orchestrator/cli/arguments.h"

namespace tandem::cli {

/// `tandem node serve|supervise|probe`. @return the exit code
int run_node(const Arguments& arguments);

}  // namespace tandem::cli
