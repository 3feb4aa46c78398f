#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <thread>

#include "runtime/comm/communicator.h"
#include "runtime/engine/engine.h"
#include "runtime/server/server.h"

namespace tandem {

/// How a serving rank ends, whoever wants it: a signal, another rank, a lost peer, the memory floor. Those speak up on
/// threads of their own, while the main thread may be loading, waiting for requests, or blocked in an exchange with a
/// rank that no longer answers.
///
/// A stop ends everything in good order. A failure first reaches clients (their streams end with an error event), then
/// wakes the main thread; if that does not get out within kFailureGrace, the process is ended with the failure's exit
/// code, since nothing it still holds can be waited for.
class ServeControl {
 public:
  static constexpr std::chrono::milliseconds kFailureGrace{1500};
  static constexpr std::chrono::milliseconds kStopGrace{30'000};

  ServeControl();
  ~ServeControl();

  void stop();
  void fail(const Error& error);

  bool ending() const { return stopping_ || failed_; }
  std::optional<Error> failure() const;
  /// @throws Error  the failure, or kind `interrupted`
  void throw_if_ending() const;

  /// What a stop or a failure must reach; nullptr before the thing is destroyed. What happened before is caught up on.
  void watch(Server* server);
  void watch(Communicator* communicator);
  void watch(Engine* engine);

 private:
  void run();
  void apply();

  std::atomic<bool> stopping_{false};
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;
  std::optional<Error> failure_;
  std::chrono::steady_clock::time_point ending_since_;
  Server* server_ = nullptr;
  Communicator* communicator_ = nullptr;
  Engine* engine_ = nullptr;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

}  // namespace tandem
