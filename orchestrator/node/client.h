#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <stop_token>
#include <string>

#include "orchestrator/node/protocol.h"
#include "orchestrator/node/transport.h"

namespace tandem::node {

struct ClientOptions {
  std::chrono::milliseconds handshake_timeout{15'000};
  /// A node that has said nothing for this long, not even a beat, is given up.
  std::chrono::milliseconds silence_timeout{45'000};
  /// How long a cancelled call may take to clean up.
  std::chrono::milliseconds cancel_timeout{30'000};
};

/// The controller's end of the node protocol. Calls may run side by side, from several threads.
class NodeClient {
 public:
  /// Shakes hands. Lines before the greeting (login banners) are skipped and quoted when no greeting comes.
  /// @param name  of the node, put in front of every error's place
  /// @throws Error  kind `node`: no greeting in time, another version
  NodeClient(std::string name, std::unique_ptr<NodeTransport> transport, ClientOptions options = {});
  /// Closes the connection, which cancels what still runs on the node.
  ~NodeClient();

  const std::string& name() const;
  const Hello& hello() const;

  using OnEvent = std::function<void(const nlohmann::json&)>;

  /// Runs a method on the node and waits for its result.
  /// @param on_event  called on this thread, in order; what it throws cancels the call and goes on to the caller
  /// @param stop      cancels the call on the node; ends with Error(interrupted)
  /// @throws Error    the node's own error with its kind; kind `node` when the connection is lost or silent
  nlohmann::json call(const std::string& method, const nlohmann::json& params, const OnEvent& on_event = {},
                      std::stop_token stop = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::node
