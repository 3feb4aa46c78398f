#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>

#include "orchestrator/fabric/link_report.h"

namespace tandem::fabric {

/// How much a probe may move and take, each way. The first limit reached ends it.
struct ProbeLimits {
  int64_t bytes = int64_t{1} << 30;
  std::chrono::milliseconds duration{500};
  int round_trips = 200;
  std::chrono::milliseconds timeout{10'000};  ///< for everything together, connecting included
};

/// The answering end: listens on a free port of one address. It serves only connections that open with its token, so
/// what answers a probe is the peer it is meant for, and not whoever else listens there.
class TcpProbeServer {
 public:
  /// @param address  numeric IPv4 or IPv6 address of this machine
  /// @throws Error  kind `link`
  TcpProbeServer(const std::string& address, std::string token);
  ~TcpProbeServer();
  int port() const;
  /// Serves one probe. @throws Error  kind `link`, when none came in time or it broke; `interrupted`
  void serve(const ProbeLimits& limits, std::stop_token stop = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The asking end: measures round trips, then moves bytes out and back, each counted by the end that receives them.
/// @param source_address  the address to connect from; "" lets the kernel choose
/// @return a report without node names and grade; its transport is loopback when both ends are this machine
/// @throws Error  kind `link`: refused, timed out, wrong token; `interrupted`
LinkReport probe_tcp(const std::string& source_address, const std::string& address, int port, const std::string& token,
                     const ProbeLimits& limits, std::stop_token stop = {});

}  // namespace tandem::fabric
