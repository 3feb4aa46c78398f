#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tandem {

// Numbers with units, as recipes and flags write them. Each returns nothing for anything but exactly
// NUMBER UNIT (no sign, no exponent, no spaces, no overflow): the caller knows the place and writes the error.

/// "2GiB", "220.6GB", "512KiB", "4096B": B, kB MB GB TB (powers of 1000), KiB MiB GiB TiB (powers of 1024).
std::optional<int64_t> parse_bytes(std::string_view text);
/// "262144", "256k" (= 262,144), "1M" (= 1,048,576): tokens.
std::optional<int64_t> parse_tokens(std::string_view text);
/// "90Gbit/s", "900Mbit/s": bits a second.
std::optional<int64_t> parse_bandwidth(std::string_view text);
/// "20us", "150ms", "30s", "15m", "2h".
std::optional<std::chrono::nanoseconds> parse_duration(std::string_view text);

std::string format_bytes(int64_t bytes);              ///< "103.4 GiB", "512 B"
std::string format_rate(double bytes_per_second);     ///< "812.3 MiB/s"
std::string format_bandwidth(double bits_per_second); ///< "97.2 Gbit/s"
std::string format_duration(std::chrono::nanoseconds duration);  ///< "2m 05s", "340 ms", "12.3 us"

}  // namespace tandem
