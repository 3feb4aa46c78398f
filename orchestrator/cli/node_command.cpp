#include <unistd.h>

#include <nlohmann/json.hpp>

#include "orchestrator/cli/commands.h"
#include "orchestrator/cli/console.h"
#include "orchestrator/node/facts.h"
#include "orchestrator/node/rank_methods.h"
#include "orchestrator/node/server.h"
#include "orchestrator/node/supervisor.h"
#include "orchestrator/node/work_methods.h"

namespace tandem::cli {

int run_node(const Arguments& arguments) {
  if (arguments.subcommand == "supervise") return node::run_supervisor(arguments.folder, arguments.rank);
  if (arguments.subcommand == "probe") {
    node::ProbeRequest request;
    request.name = "local";
    nlohmann::ordered_json document = {{"schema_version", 1}};
    document.update(nlohmann::ordered_json(node::to_json(node::gather_facts(request))));
    print_json(document);
    return 0;
  }
  node::Methods methods = node::rank_methods();
  methods.merge(node::work_methods());
  return node::serve(STDIN_FILENO, STDOUT_FILENO, methods);
}

}  // namespace tandem::cli
