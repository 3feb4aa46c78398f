#pragma once

#include "orchestrator/recipe/document.h"
#include "orchestrator/recipe/load.h"

namespace tandem {

/// The merged trees of a run, each value with the place it was written at.
struct Layers {
  Value recipe;
  Value cluster;
  bool default_cluster = false;
  std::vector<Note> notes;
};

/// Reads the files, follows `extends`, lays the cluster's overrides and --set on top, and checks every layer.
/// Problems are added; the trees are complete and well-typed only when there were none.
Layers read_layers(const LoadOptions& options, Problems& problems);

/// Turns the trees into typed values and checks what concerns several of them: exclusive keys, counts, orders.
/// @param values  of one recipe without problems so far
Recipe build_recipe(const Layers& layers, Problems& problems, std::vector<Note>& notes);
Cluster build_cluster(const Layers& layers, Problems& problems);

/// Every leaf with its origin, and the defaults of those that nobody wrote.
std::vector<EffectiveValue> effective_values(const Layers& layers);

}  // namespace tandem
