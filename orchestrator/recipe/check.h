#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "orchestrator/recipe/document.h"
#include "orchestrator/recipe/fields.h"

namespace tandem {

/// What is wrong with one value, and the fix.
struct Complaint {
  std::string what, fix;
};

/// Checks a scalar against its field: form, unit, bounds, and the texts that YAML 1.1 readers take for something else.
std::optional<Complaint> check_scalar(const Field& field, const Value& value);

/// May a recipe set this environment variable of a foreign engine? Only names of known engines' settings, and none that
/// loads code, names files, or carries secrets; the cluster's owner may set any.
std::optional<Complaint> check_recipe_variable(std::string_view name);

/// Checks every key and value of one layer against the table: unknown keys, types, who may set what.
void check_layer(const Value& root, Document document, Problems& problems);

/// Checks that required keys are there, once the layers are merged. `where` is shown for the root.
void check_required(const Value& root, Document document, Problems& problems);

}  // namespace tandem
