#pragma once

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <stop_token>
#include <string>

namespace tandem::node {

/// One request while it runs.
struct Request {
  const nlohmann::json& params;
  std::function<void(const nlohmann::json&)> send_event;  ///< from any thread
  std::stop_token stop;                                   ///< cancelled, or the controller went away
};

/// @throws Error  what the controller gets to see
using Method = std::function<nlohmann::json(const Request&)>;
using Methods = std::map<std::string, Method>;

/// The node's end of the protocol: greets, runs requests each on a thread of its own, until its input ends. Then
/// cancels what runs and waits for it.
/// Lines that are not requests get an error back (with id null when there is none); only a line of endless length
/// ends the connection.
/// @return exit code
int serve(int in_fd, int out_fd, const Methods& methods);

}  // namespace tandem::node
