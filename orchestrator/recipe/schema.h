#pragma once

#include <string>

#include "orchestrator/recipe/fields.h"

namespace tandem {

/// JSON Schema (draft 7, which editors know best) of recipes or cluster files, made from the table of fields.
/// recipes/schema.json and recipes/cluster-schema.json hold it; a test compares them.
std::string json_schema(Document document);

}  // namespace tandem
