#include "orchestrator/cli/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string_view>

namespace tandem::cli {
namespace {

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

DisplayOptions display_options(const Arguments& arguments) {
  DisplayOptions options;
  const bool terminal = isatty(STDERR_FILENO) != 0;
  const bool dumb = variable("TERM") == "dumb";
  options.live = terminal && !dumb;
  options.color = arguments.color == ColorChoice::always ||
                  (arguments.color == ColorChoice::automatic && terminal && !dumb && variable("NO_COLOR").empty());
  options.quiet = arguments.quiet;
  winsize size{};
  if (terminal && ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) options.columns = size.ws_col;
  return options;
}

void print_json(const nlohmann::ordered_json& document) {
  std::cout << document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << std::endl;
}

LoadOptions load_options(const Arguments& arguments) {
  LoadOptions options;
  options.recipe = find_recipe(arguments.recipe, recipe_folders());
  options.cluster = arguments.cluster;
  options.sets = arguments.sets;
  return options;
}

}  // namespace tandem::cli
