#include <iostream>

#include "orchestrator/cli/commands.h"
#include "orchestrator/cli/console.h"
#include "orchestrator/launch/nodes.h"
#include "orchestrator/plan/commands.h"
#include "orchestrator/recipe/commands.h"

namespace tandem::cli {

int run_validate(const Arguments& arguments) {
  return validate_command(load_options(arguments), arguments.json, std::cout, std::cerr);
}

int run_show(const Arguments& arguments) {
  show_command({load_options(arguments), arguments.origin, arguments.json}, std::cout);
  return 0;
}

int run_plan(const Arguments& arguments, const Interrupts& interrupts) {
  const auto ask = [&](const Recipe& recipe, const Cluster& cluster, const PackFacts& pack) {
    launch::Nodes nodes(cluster.nodes);
    return launch::ask_nodes(nodes, recipe, cluster, pack, interrupts.token());
  };
  return plan_command({load_options(arguments), arguments.offline}, arguments.json, ask, std::cout, &interrupts.flag());
}

int run_lock(const Arguments& arguments, const Interrupts& interrupts) {
  lock_command({load_options(arguments), arguments.check}, arguments.json, std::cout, &interrupts.flag());
  return 0;
}

}  // namespace tandem::cli
