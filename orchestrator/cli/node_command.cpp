#include "orchestrator/cli/node_command.h"

#include <unistd.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "orchestrator/node/rank_methods.h"
#include "orchestrator/node/server.h"
#include "orchestrator/node/supervisor.h"

namespace tandem::cli {
namespace {

node::Methods all_methods() {
  node::Methods methods = node::rank_methods();
  return methods;
}

}  // namespace

int run_node(const Arguments& arguments) {
  if (arguments.subcommand == "supervise") return node::run_supervisor(arguments.folder, arguments.rank);
  return node::serve(STDIN_FILENO, STDOUT_FILENO, all_methods());
}

}  // namespace tandem::cli
