#pragma once

#include <atomic>
#include <functional>
#include <stop_token>

namespace tandem::node {

/// A flag for interfaces that poll one, set as soon as a stop token is.
class CancelFlag {
 public:
  explicit CancelFlag(const std::stop_token& stop) : set_(stop, [this] { flag_ = true; }) {}
  const std::atomic<bool>* get() const { return &flag_; }

 private:
  std::atomic<bool> flag_ = false;
  std::stop_callback<std::function<void()>> set_;
};

}  // namespace tandem::node
