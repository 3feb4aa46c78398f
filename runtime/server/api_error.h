#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <stdexcept>
#include <string>

namespace tandem {

/// An error a client gets: HTTP status and OpenAI's JSON body.
class ApiError : public std::runtime_error {
 public:
  ApiError(int status, std::string type, std::string code, std::string message, std::string param = "");

  int status() const { return status_; }
  /// Seconds a client should wait, for statuses that pass.
  std::optional<int> retry_after() const { return retry_after_; }
  ApiError&& after(int seconds) &&;

  /// {"error": {"message", "type", "param", "code"}}; param and code are null when they say nothing.
  nlohmann::ordered_json body() const;

 private:
  int status_;
  std::string type_, code_, param_;
  std::optional<int> retry_after_;
};

/// 400, `param` names the field.
ApiError bad_request(const std::string& message, const std::string& param = "");

}  // namespace tandem
