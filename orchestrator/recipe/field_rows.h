#pragma once

#include <vector>

#include "orchestrator/recipe/fields.h"

namespace tandem {

// Inside orchestrator/recipe only: the rows that fields.cpp indexes.
std::vector<Field> recipe_rows();
std::vector<Field> cluster_rows();

}  // namespace tandem
