#include "runtime/server/api_error.h"

#include <nlohmann/json.hpp>

#include "runtime/common/error.h"

namespace tandem {

ApiError::ApiError(int status, std::string type, std::string code, std::string message, std::string param)
    : std::runtime_error(printable(message, 2000)),
      status_(status),
      type_(std::move(type)),
      code_(std::move(code)),
      param_(printable(param, 200)) {}

ApiError&& ApiError::after(int seconds) && {
  retry_after_ = seconds;
  return std::move(*this);
}

nlohmann::ordered_json ApiError::body() const {
  const auto or_null = [](const std::string& text) {
    return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
  };
  return {{"error", {{"message", what()}, {"type", type_}, {"param", or_null(param_)}, {"code", or_null(code_)}}}};
}

ApiError bad_request(const std::string& message, const std::string& param) {
  return {400, "invalid_request_error", "", message, param};
}

}  // namespace tandem
