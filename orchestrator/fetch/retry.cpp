#include "orchestrator/fetch/retry.h"

#include <algorithm>
#include <charconv>
#include <ctime>
#include <string>

namespace tandem {

std::chrono::milliseconds RetryPolicy::wait_before(int tries, double random) const {
  const int doublings = std::clamp(tries - 1, 0, 20);
  const auto wait = std::min<std::chrono::milliseconds::rep>(first_wait.count() << doublings, longest_wait.count());
  return std::chrono::milliseconds(static_cast<int64_t>(static_cast<double>(wait) * (1.0 - 0.5 * random)));
}

std::optional<std::chrono::seconds> parse_retry_after(std::string_view value,
                                                      std::chrono::system_clock::time_point now) {
  constexpr int64_t kDay = 24 * 60 * 60;
  while (!value.empty() && value.front() == ' ') value.remove_prefix(1);
  while (!value.empty() && value.back() == ' ') value.remove_suffix(1);
  if (value.empty() || value.size() > 64) return std::nullopt;

  if (value.find_first_not_of("0123456789") == std::string_view::npos) {
    int64_t seconds = 0;
    const auto parsed = std::from_chars(value.data(), value.data() + value.size(), seconds);
    return std::chrono::seconds(parsed.ec == std::errc() ? std::min(seconds, kDay) : kDay);
  }
  // "Wed, 21 Oct 2026 07:28:00 GMT": the one form servers may send.
  std::tm date{};
  const std::string text(value);
  const char* end = strptime(text.c_str(), "%a, %d %b %Y %H:%M:%S GMT", &date);
  if (end == nullptr || *end != '\0') return std::nullopt;
  const auto seconds = timegm(&date) - std::chrono::system_clock::to_time_t(now);
  return std::chrono::seconds(std::clamp<int64_t>(seconds, 0, kDay));
}

}  // namespace tandem
