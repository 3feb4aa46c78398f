#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

namespace tandem {

enum class LogLevel { trace, debug, info, warn, error, off };

/// key=value at the end of a log line. Values of strangers are made printable; values with spaces are quoted.
struct LogField {
  template <typename T>
  LogField(std::string_view k, const T& v) : key(k), value(to_text(v)) {}

  std::string_view key;
  std::string value;

 private:
  template <typename T>
  static std::string to_text(const T& v) {
    if constexpr (std::is_same_v<T, bool>) return v ? "true" : "false";
    else if constexpr (std::is_floating_point_v<T>) return number(v);
    else if constexpr (std::is_arithmetic_v<T>) return std::to_string(v);
    else return std::string(v);
  }
  static std::string number(double v);
};

/// Names the process in every line: "2026-10-28T12:00:00.123 info node-a rank0  phrase key=value". Call once, in main.
/// @param node, rank  left out of the line when "" / -1
void init_logging(LogLevel level, std::string_view node = "", int rank = -1);

/// Lines go to stderr. error: someone must act; warn: carried on, not as asked; info: once per stage or request;
/// debug: decisions and commands; trace: per step. Thread-safe.
void log_line(LogLevel level, std::string_view phrase, std::initializer_list<LogField> fields = {});

inline void log_error(std::string_view phrase, std::initializer_list<LogField> f = {}) { log_line(LogLevel::error, phrase, f); }
inline void log_warn(std::string_view phrase, std::initializer_list<LogField> f = {}) { log_line(LogLevel::warn, phrase, f); }
inline void log_info(std::string_view phrase, std::initializer_list<LogField> f = {}) { log_line(LogLevel::info, phrase, f); }
inline void log_debug(std::string_view phrase, std::initializer_list<LogField> f = {}) { log_line(LogLevel::debug, phrase, f); }
inline void log_trace(std::string_view phrase, std::initializer_list<LogField> f = {}) { log_line(LogLevel::trace, phrase, f); }

}  // namespace tandem
