// tandem: command line -> command -> exit code. The one place where an Error is printed.
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "orchestrator/cli/arguments.h"
#include "orchestrator/cli/commands.h"
#include "orchestrator/cli/console.h"
#include "orchestrator/cli/interrupt.h"
#include "runtime/common/error.h"
#include "runtime/common/log.h"

namespace {

using namespace tandem;

int report(const Error& error, bool json) {
  if (json) {
    cli::print_json({{"schema_version", 1},
                     {"error",
                      {{"kind", error_kind_name(error.kind())},
                       {"what", error.what()},
                       {"where", error.where()},
                       {"fix", error.fix()}}},
                     {"exit_code", exit_code(error.kind())}});
  } else {
    std::cout.flush();
    std::cerr << error.report();
  }
  return exit_code(error.kind());
}

int run(const cli::Arguments& arguments) {
  init_logging(arguments.verbose ? LogLevel::debug : arguments.quiet ? LogLevel::error : LogLevel::warn);
  const std::string& command = arguments.command;
  if (command == "node") return cli::run_node(arguments);
  const cli::Interrupts interrupts;
  if (command == "validate") return cli::run_validate(arguments);
  if (command == "show") return cli::run_show(arguments);
  if (command == "plan") return cli::run_plan(arguments, interrupts);
  if (command == "lock") return cli::run_lock(arguments, interrupts);
  if (command == "fetch") return cli::run_fetch(arguments, interrupts);
  if (command == "split") return cli::run_split(arguments, interrupts);
  if (command == "link") return cli::run_link(arguments, interrupts);
  if (command == "up") return cli::run_up(arguments, interrupts);
  if (command == "status") return cli::run_status(arguments);
  if (command == "logs") return cli::run_logs(arguments, interrupts);
  if (command == "down") return cli::run_down(arguments);
  if (command == "mirror") return cli::run_mirror(arguments, interrupts);
  if (command == "cache") return cli::run_cache(arguments);
  if (command == "version") return cli::run_version(arguments);
  throw Error(ErrorKind::internal, "no function for the command `" + command + "`");
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
