#include "runtime/common/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "runtime/common/error.h"

namespace tandem {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::trace: return spdlog::level::trace;
    case LogLevel::debug: return spdlog::level::debug;
    case LogLevel::info: return spdlog::level::info;
    case LogLevel::warn: return spdlog::level::warn;
    case LogLevel::error: return spdlog::level::err;
    case LogLevel::off: return spdlog::level::off;
  }
  return spdlog::level::info;
}

spdlog::logger& logger() {
  static const auto instance = [] {
    auto made = spdlog::stderr_logger_mt("tandem");
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %v");
    made->set_level(spdlog::level::warn);  // a library's or a test's default: quiet until init_logging()
    made->flush_on(spdlog::level::trace);
    return made;
  }();
  return *instance;
}

std::string& prefix() {
  static std::string text;
  return text;
}

std::string one_line(std::string_view text) {
  std::string safe = printable(text);
  for (size_t at = 0; (at = safe.find('\n', at)) != std::string::npos; at += 2) safe.replace(at, 1, "\\n");
  return safe;
}

}  // namespace

std::string LogField::number(double v) { return fmt::format("{:.6g}", v); }

void init_logging(LogLevel level, std::string_view node, int rank) {
  std::string text;
  if (!node.empty()) text += one_line(node) + " ";
  if (rank >= 0) text += "rank" + std::to_string(rank) + " ";
  prefix() = text;
  logger().set_level(to_spdlog(level));
}

void log_line(LogLevel level, std::string_view phrase, std::initializer_list<LogField> fields) {
  const auto spd_level = to_spdlog(level);
  if (!logger().should_log(spd_level)) return;
  std::string line = prefix() + one_line(phrase);
  for (const LogField& field : fields) {
    std::string value = one_line(field.value);
    const bool quoted = value.empty() || value.find_first_of(" \"=") != std::string::npos;
    line += " " + std::string(field.key) + "=" + (quoted ? "\"" + value + "\"" : value);
  }
  logger().log(spd_level, "{}", line);
}

}  // namespace tandem
