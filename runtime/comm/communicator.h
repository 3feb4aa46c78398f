#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/common/error.h"

namespace tandem {

/// What one rank knows of another.
struct RankStatus {
  int rank = 0;
  bool alive = true;
  int64_t bytes_exchanged = 0;  ///< as that rank last reported; of this rank: now
};

/// Exchanges between the ranks of one model. Every rank makes the same calls in the same order, from one thread.
///
/// A call throws Error: kind `peer_lost`, naming the rank, when another rank died, fell silent or left; kind `link`
/// when an exchange took longer than its deadline. After an error the group is broken for good: end the process. With
/// world_size 1 all calls return at once.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  /// data[i] = sum over ranks of data[i], added in the order of ranks in fp32, so that every rank holds identical bits.
  /// @param data  (n), overwritten
  virtual void sum_in_rank_order(float* data, int64_t n) = 0;

  /// Every rank's block to every rank.
  /// @param send     (bytes)
  /// @param receive  (world_size, bytes), blocks in the order of ranks; must not overlap `send`
  virtual void all_gather(const void* send, void* receive, int64_t bytes) = 0;

  /// data of rank `root` to every rank.
  /// @param data  (bytes)
  virtual void broadcast(int root, void* data, int64_t bytes) = 0;

  /// Returns on every rank once all have called it. `timeout` replaces the group's exchange deadline: ranks may load
  /// weights at very different speeds.
  virtual void barrier(std::chrono::milliseconds timeout) = 0;

  /// Bytes this rank sent and received in exchanges, heartbeats not counted. From any thread.
  virtual int64_t bytes_exchanged() const = 0;

  /// All ranks in order, from any thread. Only rank 0 hears of every rank; others know themselves and rank 0.
  virtual std::vector<RankStatus> ranks() const = 0;

  /// Asks all other ranks to stop cleanly (their `on_stop` runs); from then on a closed connection is no loss.
  /// From any thread.
  virtual void announce_stop() = 0;

  /// Makes exchanges that are under way, and all later ones, throw. From any thread.
  virtual void abort() = 0;
};

/// How the ranks of one model find each other.
struct GroupOptions {
  int rank = 0;
  int world_size = 1;
  std::string rendezvous;  ///< "HOST:PORT" or "[V6]:PORT": rank 0 listens there, the others connect
  std::string token;       ///< same on all ranks: keeps strangers on the network from joining by accident
  /// What all ranks must agree on (version, pack, context, ...); a difference is an error naming both values.
  std::map<std::string, std::string> settings;

  std::chrono::milliseconds join_timeout{600'000};      ///< for all ranks to appear, in whatever order
  std::chrono::milliseconds exchange_timeout{300'000};  ///< for one exchange
  std::chrono::milliseconds peer_timeout{8'000};        ///< silence after which a rank counts as lost

  std::function<bool()> cancelled;  ///< polled while joining; true ends it with kind `interrupted`
  /// Called once, on the watching thread, when a rank was lost; exchanges under way throw when it returns, or before.
  std::function<void(const Error&)> on_peer_lost;
  std::function<void()> on_stop;  ///< another rank was asked to stop. On the watching thread
};

/// The group of one rank.
std::unique_ptr<Communicator> make_local_communicator();

/// Meets the other ranks, checks that all agree, connects Gloo over TCP and starts to watch the peers.
/// world_size 1 needs no rendezvous and opens no socket; otherwise SIGPIPE is ignored in this process from then on.
/// @throws Error  kind `usage` for settings that differ, bad addresses, a rank out of range or taken twice; `link` when
///                the others did not appear in time; `interrupted`
std::unique_ptr<Communicator> join_group(const GroupOptions& options);

}  // namespace tandem
