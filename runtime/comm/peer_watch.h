#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/control_link.h"

namespace tandem::comm {

/// Watches the other ranks from a thread of its own, which never waits for a computation: beats go out and come in over
/// the control connections. A connection that closes (the process died) is seen at once, silence (a stopped process, a
/// pulled cable) after `peer_timeout`. Rank 0 tells the others who was lost, so every rank can name it.
class PeerWatch {
 public:
  struct Callbacks {
    std::function<int64_t()> bytes_exchanged;  ///< goes out with each beat
    std::function<void(const Error&)> on_lost;
    std::function<void()> on_stop;
  };

  /// `callbacks` run on the watching thread, on_lost and on_stop at most once each.
  PeerWatch(int rank, int world_size, std::map<int, ControlLink> links, std::chrono::milliseconds peer_timeout,
            Callbacks callbacks);
  /// Says goodbye, unless an exception is being handled: then the others see a loss, which it is.
  ~PeerWatch();

  void announce_stop();
  std::vector<RankStatus> ranks() const;

  /// The loss, if one was seen; waits up to `patience` for one. An exchange that failed asks here whose fault it was.
  std::optional<Error> lost(std::chrono::milliseconds patience) const;

 private:
  struct Peer {
    ControlLink link;
    std::chrono::steady_clock::time_point last_heard;
    int64_t bytes_exchanged = 0;
    bool gone = false;  ///< left in good order
  };

  void run();
  void listen(int rank, Peer& peer);
  void handle(int rank, Peer& peer, const Frame& frame);
  void declare_lost(int rank, const std::string& how);
  void broadcast(FrameType type, const std::string& payload, std::chrono::milliseconds patience);
  void wake() const;

  const int rank_;
  const int world_size_;
  const std::chrono::milliseconds peer_timeout_;
  const Callbacks callbacks_;
  const int exceptions_at_start_;
  Socket wake_;

  mutable std::mutex mutex_;
  mutable std::condition_variable lost_changed_;
  std::map<int, Peer> peers_;
  std::optional<Error> lost_;
  bool stop_announced_ = false;  ///< by us: to be sent
  bool stopping_ = false;        ///< by anyone: closed connections are no loss
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace tandem::comm
