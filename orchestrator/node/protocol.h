#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/common/error.h"

namespace tandem::node {

// The node protocol: JSON objects, one a line, over any pair of byte streams (a child's pipes, an ssh channel).
//
//   node        {"tandem_node": 1, "version": "0.1.0", "arch": "x86_64", "boot_id": "...", "hostname": "..."}
//   controller  {"id": 7, "method": "fetch", "params": {...}}
//   node        {"id": 7, "event": {...}}                   any number: progress, log lines, states
//   node        {"id": 7, "result": {...}}                  or {"id": 7, "error": {"kind", "what", "where", "fix"}}
//   controller  {"id": 7, "cancel": true}                   the call then ends soon, with an error of kind interrupted
//   node        {"beat": 12}                                every few seconds: a node that hangs is told from a slow
//   one
//
// Requests run side by side; their ids are the controller's. The end of the controller's stream cancels all of them.

inline constexpr int kProtocolVersion = 1;
/// Longer lines end the connection: nothing we send comes near it.
inline constexpr size_t kMaxLineBytes = size_t{4} << 20;
/// Requests of one connection that may run at once.
inline constexpr int kMaxRequests = 64;

/// Version of this program, as the handshake compares it.
std::string program_version();
/// "x86_64", "aarch64".
std::string machine_architecture();

/// What a node says of itself first.
struct Hello {
  std::string version, arch, boot_id, hostname;
};
Hello own_hello();
nlohmann::json to_json(const Hello& hello);
/// @throws Error  kind `node`: not a hello, another protocol, or another version (the error names both versions)
Hello check_hello(const nlohmann::json& line, const std::string& own_version);

nlohmann::json error_to_json(const Error& error);
Error error_from_json(const nlohmann::json& json);

/// Cuts a byte stream into lines of bounded length.
class LineSplitter {
 public:
  /// @throws Error  kind `node`, when a line grows beyond kMaxLineBytes
  void add(std::string_view bytes);
  /// The next complete line without its newline.
  std::optional<std::string> next();

 private:
  std::string buffer_;
  size_t scanned_ = 0;
};

/// Parses one line. Nothing when it is not a JSON object.
std::optional<nlohmann::json> parse_line(std::string_view line);
/// One line, newline included. Text that is not UTF-8 is replaced, never an error.
std::string format_line(const nlohmann::json& json);

}  // namespace tandem::node
