#pragma once

#include <atomic>
#include <stop_token>

namespace tandem::cli {

/// Turns SIGINT, SIGTERM and SIGHUP into a stop request, for the whole life of the program. Create it first in main,
/// before any thread, since threads inherit the signal mask.
class Interrupts {
 public:
  /// The first signal asks everything to clean up and end; the third ends the program on the spot, for those who
  /// would rather clean up themselves.
  Interrupts();

  std::stop_token token() const;
  bool happened() const;
  /// For interfaces that poll: set together with the token.
  const std::atomic<bool>& flag() const;
};

}  // namespace tandem::cli
