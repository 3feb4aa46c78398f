#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tandem {

/// How long a request may hang and how often it is tried again. The defaults suit a hub on the internet.
struct RetryPolicy {
  int max_tries = 8;                          ///< in a row without a single new byte
  std::chrono::milliseconds first_wait{500};  ///< doubles with every try, each time shortened by up to a half at random
  std::chrono::milliseconds longest_wait{30'000};
  std::chrono::seconds longest_retry_after{600};  ///< a server that asks for more patience than this ends the command
  int max_retry_after = 60;                       ///< answers in a row that ask to come back later
  std::chrono::milliseconds connect_timeout{10'000};
  std::chrono::milliseconds stall_timeout{30'000};  ///< no byte for this long, or too few: reconnect
  int64_t floor_bytes_per_second = 1024;            ///< slower than this over a whole stall_timeout counts as a stall

  /// The wait before try number `tries` (1 = after the first failure). `random` in [0, 1).
  std::chrono::milliseconds wait_before(int tries, double random) const;
};

/// The value of a Retry-After header: seconds, or an HTTP date (relative to `now`; a past date is 0).
/// Nothing for anything else. Values beyond a day are cut to a day.
std::optional<std::chrono::seconds> parse_retry_after(std::string_view value,
                                                      std::chrono::system_clock::time_point now);

}  // namespace tandem
