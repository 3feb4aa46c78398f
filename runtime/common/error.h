#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

/// What kind of thing went wrong. Decides the exit code; see exit_code().
enum class ErrorKind {
  internal,     ///< a bug of ours
  usage,        ///< flags
  recipe,       ///< recipe, cluster file, overrides
  plan,         ///< the plan is blocked: memory, divisibility, ports
  fetch,        ///< hub, mirror, download, checksum
  pack,         ///< a pack or rank folder that cannot be used
  split,        ///< cutting a pack into rank folders
  node,         ///< node protocol, supervisors, files of a node
  link,         ///< the network between ranks
  launch,       ///< a rank did not start or died while starting
  health,       ///< a job runs but does not answer as it should
  peer_lost,    ///< tandem-runtime: another rank went away
  memory,       ///< tandem-runtime: the memory floor was reached
  interrupted,  ///< Ctrl-C, SIGTERM
};

std::string_view error_kind_name(ErrorKind kind);

/// 0 done, 1 internal, 2 usage/recipe/plan, 3 fetch/pack/split, 4 node/link, 5 launch/health, 6 peer lost,
/// 7 memory floor, 130 interrupted. The README lists them.
int exit_code(ErrorKind kind);

/// An error that ends a command or a request: what happened, where, and how to fix it.
/// `where` and `fix` may be empty; `what` is one sentence without a full stop and shows both values
/// ("shape (4096, 512), expected (4096, 1024)").
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, std::string what, std::string where = "", std::string fix = "");

  ErrorKind kind() const { return kind_; }
  const std::string& where() const { return where_; }
  const std::string& fix() const { return fix_; }

  /// The same error with its place made more precise ("rank 1: " + where).
  Error at(const std::string& outer) const;

  /// "error: ...\nwhere: ...\nfix:   ...\n", control characters escaped.
  std::string report() const;

 private:
  ErrorKind kind_;
  std::string where_;
  std::string fix_;
};

/// Text of strangers made safe for a terminal, a log line or an error: control characters and invalid UTF-8 become
/// visible escapes ("\x1b"), and text longer than `max_bytes` is cut with "...".
std::string printable(std::string_view text, size_t max_bytes = 4096);

/// The candidate nearest to `given` by edit distance, or "" when none is near: for "did you mean `nodes`?".
std::string nearest_name(std::string_view given, const std::vector<std::string>& candidates);

}  // namespace tandem
