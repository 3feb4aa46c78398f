#include <iostream>
#include <nlohmann/json.hpp>

#include "orchestrator/cli/commands.h"
#include "orchestrator/cli/console.h"
#include "orchestrator/node/facts.h"
#include "orchestrator/node/protocol.h"

namespace tandem::cli {

int run_version(const Arguments& arguments) {
  const std::string runtime = node::find_runtime();
  if (arguments.json) {
    print_json({{"schema_version", 1},
                {"version", node::program_version()},
                {"architecture", node::machine_architecture()},
                {"node_protocol", node::kProtocolVersion},
                {"runtime", runtime}});
  } else {
    std::cout << "tandem " << node::program_version() << " (" << node::machine_architecture() << ")\n";
    if (arguments.verbose) std::cout << "runtime: " << (runtime.empty() ? "not found" : runtime) << "\n";
  }
  return 0;
}

}  // namespace tandem::cli
