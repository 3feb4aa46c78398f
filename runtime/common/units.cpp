#include "runtime/common/units.h"

#include <cctype>
#include <cmath>
#include <cstdio>
#include <initializer_list>

namespace tandem {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

/// Digits with at most one point between digits, then one of `units`.
std::optional<double> parse_number_with_unit(std::string_view text, std::initializer_list<Unit> units) {
  size_t at = 0;
  double value = 0, scale = 1;
  int digits = 0;
  bool point = false;
  for (; at < text.size() && (std::isdigit(static_cast<unsigned char>(text[at])) || text[at] == '.'); ++at) {
    if (text[at] == '.') {
      if (point || digits == 0 || at + 1 == text.size() || !std::isdigit(static_cast<unsigned char>(text[at + 1]))) return {};
      point = true;
      continue;
    }
    if (++digits > 18) return {};
    value = value * 10 + (text[at] - '0');
    if (point) scale *= 10;
  }
  if (digits == 0) return {};
  for (const Unit& unit : units)
    if (text.substr(at) == unit.name) return value / scale * unit.factor;
  return {};
}

std::optional<int64_t> whole(std::optional<double> value) {
  if (!value || *value >= 9.2e18) return {};
  return std::llround(*value);
}

std::string format(const char* pattern, double value, const char* unit) {
  char text[64];
  std::snprintf(text, sizeof text, pattern, value, unit);
  return text;
}

}  // namespace

std::optional<int64_t> parse_bytes(std::string_view text) {
  constexpr double kKi = 1024;
  return whole(parse_number_with_unit(text, {{"B", 1},
                                             {"kB", 1e3},
                                             {"MB", 1e6},
                                             {"GB", 1e9},
                                             {"TB", 1e12},
                                             {"KiB", kKi},
                                             {"MiB", kKi * kKi},
                                             {"GiB", kKi * kKi * kKi},
                                             {"TiB", kKi * kKi * kKi * kKi}}));
}

std::optional<int64_t> parse_tokens(std::string_view text) {
  return whole(parse_number_with_unit(text, {{"", 1}, {"k", 1024}, {"M", 1024 * 1024}}));
}

std::optional<int64_t> parse_bandwidth(std::string_view text) {
  return whole(parse_number_with_unit(text, {{"bit/s", 1}, {"kbit/s", 1e3}, {"Mbit/s", 1e6}, {"Gbit/s", 1e9}, {"Tbit/s", 1e12}}));
}

std::optional<std::chrono::nanoseconds> parse_duration(std::string_view text) {
  const auto ns = whole(parse_number_with_unit(text, {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"m", 6e10}, {"h", 3.6e12}}));
  if (!ns) return {};
  return std::chrono::nanoseconds(*ns);
}

std::string format_bytes(int64_t bytes) {
  static const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (std::fabs(value) >= 1024 && unit < 4) value /= 1024, ++unit;
  return format(unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
}

std::string format_rate(double bytes_per_second) { return format_bytes(std::llround(bytes_per_second)) + "/s"; }

std::string format_bandwidth(double bits_per_second) {
  static const char* kUnits[] = {"bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"};
  int unit = 0;
  while (bits_per_second >= 1000 && unit < 4) bits_per_second /= 1000, ++unit;
  return format("%.1f %s", bits_per_second, kUnits[unit]);
}

std::string format_duration(std::chrono::nanoseconds duration) {
  const double s = std::chrono::duration<double>(duration).count();
  char text[64];
  if (s < 1e-3) std::snprintf(text, sizeof text, "%.1f us", s * 1e6);
  else if (s < 1) std::snprintf(text, sizeof text, "%.0f ms", s * 1e3);
  else if (s < 60) std::snprintf(text, sizeof text, "%.1f s", s);
  else if (s < 3600) std::snprintf(text, sizeof text, "%dm %02ds", int(s) / 60, int(s) % 60);
  else std::snprintf(text, sizeof text, "%dh %02dm", int(s) / 3600, int(s) / 60 % 60);
  return text;
}

}  // namespace tandem
