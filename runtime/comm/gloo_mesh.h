#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <set>

#include "runtime/comm/rendezvous.h"

namespace gloo {
class Context;
namespace transport {
class UnboundBuffer;
}
}  // namespace gloo

namespace tandem::comm {

/// A TCP connection by Gloo between every two ranks, and the one pattern all exchanges are made of: everyone sends a
/// block to everyone.
///
/// Worlds are small (two to eight ranks) and one decode step makes dozens of exchanges of a few KiB, so the number of
/// hops decides: direct sends take one, Gloo's own ring collectives world_size - 1. Gloo's waits cannot be woken by
/// closing a connection of ours, therefore abort() goes through the buffers being waited for.
class GlooMesh {
 public:
  /// @throws Error  kind `link`, with Gloo's text
  GlooMesh(Meeting& meeting, int rank, int world_size, Milliseconds connect_timeout);
  ~GlooMesh();

  /// Every rank's `send` to all others, each at receive + its rank * bytes; this rank's own place is left alone. Or,
  /// with `only_sender`, that rank's `send` into the `receive` of all others.
  struct Exchange {
    const void* send;
    void* receive;
    int64_t bytes;
    int only_sender = -1;
  };
  /// @throws Error  kind `link`: the connection broke, timed out or was aborted
  void exchange(const Exchange& what, Milliseconds timeout);

  void abort();
  int64_t bytes_exchanged() const { return bytes_exchanged_; }

 private:
  using Buffer = gloo::transport::UnboundBuffer;
  class Waiting;

  const int rank_;
  const int world_size_;
  std::shared_ptr<gloo::Context> context_;
  std::atomic<int64_t> bytes_exchanged_{0};

  std::mutex mutex_;
  bool aborted_ = false;
  std::set<Buffer*> waited_for_;
};

}  // namespace tandem::comm
