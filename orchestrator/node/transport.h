#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace tandem::node {

/// The two byte streams to a node's helper: the one seam between the protocol and how a node is reached.
class NodeTransport {
 public:
  virtual ~NodeTransport() = default;

  /// For messages: "this machine", "user@address".
  virtual std::string describe() const = 0;
  /// Blocks until bytes come. @return how many; 0 at the end of the stream, also after close()
  virtual size_t read(char* buffer, size_t capacity) = 0;
  /// Writes all of it. @throws Error  kind `node`, when the node is gone
  virtual void write(std::string_view bytes) = 0;
  /// Ends both directions; from any thread, any number of times. A read() that waits returns 0.
  virtual void close() = 0;
  /// What the helper said outside the protocol, for "could not talk to it" errors; "" when nothing.
  virtual std::string diagnostics() = 0;
};

/// A helper on this machine: `EXECUTABLE node serve` as a child, in a session of its own so that Ctrl-C reaches the
/// controller only.
/// @param executable  "" = this program
/// @throws Error  kind `launch`, when it cannot be started
std::unique_ptr<NodeTransport> start_local_node(const std::string& executable = "");

}  // namespace tandem::node
