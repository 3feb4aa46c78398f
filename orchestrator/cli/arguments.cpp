#include "orchestrator/cli/arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "runtime/common/error.h"

namespace tandem::cli {
namespace {

/// The command line: names, flags and one sentence each.
class CommandLine {
 public:
  explicit CommandLine(Arguments& a) : a_(a) {
    app_.name("tandem");
    app_.require_subcommand(1);
    app_.fallthrough();
    app_.failure_message([](const CLI::App*, const CLI::Error& e) { return std::string(e.what()) + "\n"; });
    app_.footer(
        "RECIPE is a file, or the name of one in recipes/. Results go to stdout, everything else to stderr.\n"
        "Exit codes: 0 done, 2 usage, recipe or plan, 3 fetch or split, 4 node or link, 5 launch or health,\n"
        "130 interrupted, 1 internal; `plan` 10 when there is something to do; `status` 5 when a job has failed or\n"
        "the one asked for does not run.");
    app_.add_option("--cluster", a_.cluster, "Cluster file: addresses, users, folders (default: this machine)")
        ->type_name("FILE");
    app_.add_option("--set", a_.sets, "Override one value of recipe or cluster, e.g. engine.context=64k")
        ->type_name("KEY=VALUE")
        ->allow_extra_args(false)
        ->take_all();
    app_.add_flag("--json", a_.json, "Print one JSON object on stdout");
    app_.add_flag("-q,--quiet", a_.quiet, "Say less");
    app_.add_flag("-v,--verbose", a_.verbose, "Say more");
    app_.add_option("--color", color_, "auto, always or never")
        ->check(CLI::IsMember({"auto", "always", "never"}))
        ->type_name("WHEN");
    add_recipe_commands();
    add_job_commands();
    add_storage_commands();
    add_node_commands();
    command("version", "Print the version");
  }

  Parsed parse(std::vector<std::string> words) {
    std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
    try {
      app_.parse(words);
    } catch (const CLI::CallForHelp&) {
      return {a_, app_.help()};
    } catch (const CLI::ParseError& e) {
      throw explain(e);
    }
    a_.color = color_ == "always"  ? ColorChoice::always
               : color_ == "never" ? ColorChoice::never
                                   : ColorChoice::automatic;
    for (const CLI::App* chosen = &app_; !chosen->get_subcommands().empty();) {
      chosen = chosen->get_subcommands()[0];
      (a_.command.empty() ? a_.command : a_.subcommand) = chosen->get_name();
    }
    return {a_, ""};
  }

 private:
  CLI::App* command(const std::string& name, const std::string& about) {
    CLI::App* sub = app_.add_subcommand(name, about);
    sub->fallthrough();
    return sub;
  }

  CLI::App* recipe_command(const std::string& name, const std::string& about, bool required = true) {
    CLI::App* sub = command(name, about);
    CLI::Option* recipe = sub->add_option("RECIPE", a_.recipe, "Recipe file or name")->type_name("");
    if (required) recipe->required();
    return sub;
  }

  void add_recipe_commands() {
    recipe_command("validate", "Check a recipe and say every problem with its line and column");
    recipe_command("show", "Print the merged recipe")->add_flag("--origin", a_.origin, "Say where each value is from");
    recipe_command("plan", "Say what `up` would do; changes nothing")
        ->add_flag("--offline", a_.offline, "Ask neither hub nor nodes; assume the recipe's hardware");
    recipe_command("lock", "Write NAME.lock: every file of the pack with commit, size and sha256")
        ->add_flag("--check", a_.check, "Write nothing; fail when the lock is missing or no longer true");
  }

  void add_job_commands() {
    recipe_command("link", "Measure the link between the ranks' nodes");
    recipe_command("up", "Fetch, split, check the link, launch, and test an answer");
    recipe_command("status", "Say what runs, and how what ended did end", false);
    CLI::App* logs = recipe_command("logs", "Print what the ranks said");
    logs->add_flag("-f,--follow", a_.follow, "Go on until Ctrl-C");
    logs->add_option("-n,--lines", a_.lines, "Lines of each rank")->check(CLI::Range(0, 100'000))->type_name("N");
    logs->add_option("--rank", a_.rank, "Only this rank")->check(CLI::Range(0, 4095))->type_name("R");
    recipe_command("down", "Stop a job and prove that nothing of it is left", false)
        ->add_flag("--all", a_.all, "Every job");
  }

  void add_storage_commands() {
    recipe_command("fetch", "Download the pack, resumed and verified")
        ->add_flag("--verify", a_.verify, "Hash files that are already there, too");
    recipe_command("split", "Cut the pack into one folder per rank");
    CLI::App* mirror = command("mirror", "Serve a folder of packs, or the cache, in the hub's protocol");
    mirror->add_option("DIR", a_.root, "What to serve (default: the cache)")->type_name("");
    mirror->add_option("--address", a_.address, "Address to listen on")->type_name("ADDR");
    mirror->add_option("--port", a_.port, "Port to listen on; 0 takes a free one")
        ->check(CLI::Range(0, 65535))
        ->type_name("PORT");
    mirror->add_option("--log", a_.log, "Write a line for every request here")->type_name("FILE");
    mirror->add_option("--limit", a_.limit, "Bytes a second over all connections, e.g. 50MiB")->type_name("BYTES");
    CLI::App* cache = command("cache", "Say what packs and rank folders take on this disk");
    CLI::App* prune =
        cache->add_subcommand("prune", "Remove rank folders that this version cannot use, and unfinished ones");
    prune->fallthrough();
    prune->add_flag("--yes", a_.yes, "Remove them; without it they are only listed");
  }

  void add_node_commands() {
    CLI::App* node = command("node", "The helper on every node; people rarely need it");
    node->require_subcommand(1);
    node->add_subcommand("serve", "Answer a controller over stdin and stdout")->fallthrough();
    node->add_subcommand("probe", "Print what a controller would learn of this machine")->fallthrough();
    CLI::App* supervise = node->add_subcommand("supervise", "Run one rank of a job that `serve` prepared");
    supervise->fallthrough();
    supervise->add_option("--folder", a_.folder, "The job's folder")->required()->type_name("DIR");
    supervise->add_option("--rank", a_.rank, "The rank")->required()->type_name("R");
  }

  /// CLI11's error as ours: one sentence, and the nearest name that exists.
  Error explain(const CLI::ParseError& e) const {
    const CLI::App* chosen = &app_;
    while (!chosen->get_subcommands().empty()) chosen = chosen->get_subcommands()[0];
    const std::string see = chosen == &app_ ? "tandem --help" : "tandem " + path_of(chosen) + " --help";
    const std::vector<std::string> extras = app_.remaining(/*recurse=*/true);
    if (!extras.empty() && extras[0].starts_with("-")) {
      const std::string flag = extras[0].substr(0, extras[0].find('='));
      return unknown("flag", flag, nearest_name(flag, flags_of(chosen)), see);
    }
    if (chosen == &app_ || (chosen->get_name() == "node" && chosen->get_subcommands().empty())) {
      if (extras.empty()) return Error(ErrorKind::usage, "which command?", "", see);
      return unknown("command", extras[0], nearest_name(extras[0], commands_of(chosen)), see);
    }
    if (!extras.empty())
      return Error(ErrorKind::usage, "one argument too many: `" + printable(extras[0], 100) + "`", "", see);
    return Error(ErrorKind::usage, printable(e.what(), 400), "", see);
  }

  static Error unknown(const std::string& what, const std::string& given, const std::string& nearest,
                       const std::string& see) {
    return Error(ErrorKind::usage, "unknown " + what + " `" + printable(given, 100) + "`", "",
                 nearest.empty() ? see : "did you mean `" + nearest + "`? See " + see);
  }

  static std::string path_of(const CLI::App* app) {
    const CLI::App* parent = app->get_parent();
    return (parent == nullptr || parent->get_parent() == nullptr ? "" : path_of(parent) + " ") + app->get_name();
  }

  static std::vector<std::string> flags_of(const CLI::App* app) {
    std::vector<std::string> names;
    for (; app != nullptr; app = app->get_parent())
      for (const CLI::Option* option : app->get_options())
        for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    return names;
  }

  static std::vector<std::string> commands_of(const CLI::App* app) {
    std::vector<std::string> names;
    for (const CLI::App* sub : app->get_subcommands({})) names.push_back(sub->get_name());
    return names;
  }

  CLI::App app_{"Large language models on a few home machines, from a shared recipe"};
  Arguments& a_;
  std::string color_;
};

}  // namespace

Parsed parse_arguments(const std::vector<std::string>& words) {
  Arguments arguments;
  return CommandLine(arguments).parse(words);
}

}  // namespace tandem::cli
