#pragma once

#include <iosfwd>

#include "orchestrator/recipe/load.h"

namespace tandem {

/// `tandem validate`: says that the recipe is sound, or every problem in it.
/// @param out     the verdict; with `json` one object, problems included
/// @param errors  the problems and notes for people; unused with `json`
/// @return the exit code: 0, or 2 with problems
int validate_command(const LoadOptions& options, bool json, std::ostream& out, std::ostream& errors);

struct ShowOptions {
  LoadOptions load;
  bool origin = false;  ///< say where each value comes from
  bool json = false;
};

/// `tandem show`: the merged recipe, value by value.
/// @throws Error  as load_recipe
void show_command(const ShowOptions& options, std::ostream& out);

}  // namespace tandem
