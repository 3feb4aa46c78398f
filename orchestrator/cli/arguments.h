#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tandem::cli {

enum class ColorChoice { automatic, always, never };

/// The command line as typed values. Every command reads what is its own; arguments.cpp says which that is.
struct Arguments {
  std::string command;     ///< "up", "node", ...
  std::string subcommand;  ///< of `node`: serve, supervise, probe; of `cache`: prune or ""

  // Global.
  std::optional<std::filesystem::path> cluster;
  std::vector<std::string> sets;
  bool json = false;
  bool quiet = false;
  bool verbose = false;
  ColorChoice color = ColorChoice::automatic;

  std::string recipe;    ///< file or name; of `status`, `logs` and `down` also a job's name; "" when left out
  bool origin = false;   ///< show
  bool offline = false;  ///< plan
  bool check = false;    ///< lock
  bool verify = false;   ///< fetch: hash what is there, too
  bool follow = false;   ///< logs
  int lines = 50;        ///< logs
  int rank = -1;         ///< logs, node supervise
  bool all = false;      ///< down
  bool yes = false;      ///< cache prune

  // mirror
  std::filesystem::path root;
  std::string address = "127.0.0.1";
  int port = 8090;
  std::filesystem::path log;
  std::string limit;  ///< "50MiB" a second

  std::filesystem::path folder;  ///< node supervise
};

/// What was asked for on the command line.
struct Parsed {
  Arguments arguments;
  std::string help;  ///< not empty: print it and exit with 0
};

/// @throws Error  kind `usage`, with the nearest flag or command that exists
Parsed parse_arguments(const std::vector<std::string>& arguments);

}  // namespace tandem::cli
