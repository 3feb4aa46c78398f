#pragma once

#include <nlohmann/json_fwd.hpp>

#include "orchestrator/cli/arguments.h"
#include "orchestrator/cli/stage_display.h"
#include "orchestrator/recipe/load.h"

namespace tandem::cli {

/// How the stages look, given flags, environment (NO_COLOR, TERM) and whether stderr is a terminal.
DisplayOptions display_options(const Arguments& arguments);

/// The one object that --json prints. Text that is not UTF-8 is replaced, never an error.
void print_json(const nlohmann::ordered_json& document);

/// The three layers of a run, the recipe found by file or name. @throws Error
LoadOptions load_options(const Arguments& arguments);

}  // namespace tandem::cli
