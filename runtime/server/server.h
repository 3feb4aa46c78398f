#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/server/served_model.h"

namespace tandem {

/// What `GET /health` tells. Only `ready` is a 200.
enum class Phase { loading, warming, ready, stopping, failed };
std::string_view phase_name(Phase phase);

struct ServerOptions {
  std::string address = "127.0.0.1";
  int port = 0;  ///< 0: any
  std::string model_name;
  int64_t context = 0;
  int world_size = 1;
  std::string version;
  size_t max_body_bytes = 32 << 20;
  int max_connections = 64;  ///< served at once; further ones wait
  std::chrono::milliseconds keep_alive_comment{15'000};
  std::chrono::milliseconds stall_limit{300'000};  ///< a step that takes longer makes /health fail
  std::function<std::vector<RankStatus>()> ranks;  ///< for /health and /metrics
  std::function<bool()> memory_is_short;           ///< true refuses new requests
};

/// OpenAI's HTTP API over one engine. Listens from construction on, so that /health tells of loading; answers requests
/// between serve() and stop(). The setters may be called from any thread.
class Server {
 public:
  /// @throws Error  kind `usage`, when the address cannot be bound
  explicit Server(ServerOptions options);
  ~Server();

  int port() const;

  void set_progress(double progress);  ///< of loading, 0..1
  void set_ranks(std::function<std::vector<RankStatus>()> ranks);
  /// `message` tells people more. Nothing follows a failure, and only a failure a stop.
  void set_phase(Phase phase, const std::string& message = "");
  /// From now on requests go to `model`, which must outlive this server or stop().
  void serve(ServedModel& model);

  /// Lets open answers tell their end (the engine has ended them, or is about to) for up to `patience`, then closes all
  /// connections. Idempotent.
  void stop(std::chrono::milliseconds patience);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
