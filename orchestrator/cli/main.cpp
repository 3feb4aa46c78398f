// tandem: command line -> command -> exit code. The one place where an Error is printed.
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "orchestrator/cli/arguments.h"
#include "orchestrator/cli/interrupt.h"
#include "orchestrator/cli/node_command.h"
#include "runtime/common/error.h"
#include "runtime/common/log.h"

namespace {

using namespace tandem;

int report(const Error& error, bool json) {
  if (json) {
    nlohmann::ordered_json document = {{"schema_version", 1},
                                       {"error",
                                        {{"kind", error_kind_name(error.kind())},
                                         {"what", error.what()},
                                         {"where", error.where()},
                                         {"fix", error.fix()}}},
                                       {"exit_code", exit_code(error.kind())}};
    std::cout << document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
  } else {
    std::cout.flush();
    std::cerr << error.report();
  }
  return exit_code(error.kind());
}

int run(const cli::Arguments& arguments) {
  init_logging(arguments.verbose ? LogLevel::debug : LogLevel::warn);
  if (arguments.command == "node") return cli::run_node(arguments);
  const cli::Interrupts interrupts;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  bool json = false;
  for (const std::string& word : words) json = json || word == "--json";  // also when the rest cannot be parsed
  try {
    const cli::Parsed parsed = cli::parse_arguments(words);
    if (!parsed.help.empty()) {
      std::cout << parsed.help;
      return 0;
    }
    return run(parsed.arguments);
  } catch (const Error& e) {
    return report(e, json);
  } catch (const std::exception& e) {
    return report(Error(ErrorKind::internal, e.what(), "", "this is a bug of tandem; please report it"), json);
  }
}
