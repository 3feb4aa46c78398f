#include "runtime/cli/serve_control.h"

#include <cstdio>
#include <cstdlib>

#include "runtime/cli/interrupt.h"
#include "runtime/common/log.h"

namespace tandem {

ServeControl::ServeControl() : thread_([this] { run(); }) {}

ServeControl::~ServeControl() {
  over_ = true;
  thread_.join();
}

void ServeControl::run() {
  while (!over_) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (interrupted()) stop();
    if (!ending()) continue;
    const std::lock_guard lock(mutex_);
    const auto since = std::chrono::steady_clock::now() - ending_since_;
    if (failed_ && since > kFailureGrace) {
      std::fputs(failure_->report().c_str(), stderr);
      std::_Exit(exit_code(failure_->kind()));
    }
    if (!failed_ && since > kStopGrace) {
      log_error("the stop took too long", {{"seconds", kStopGrace.count() / 1000}});
      std::_Exit(exit_code(ErrorKind::interrupted));
    }
  }
}

void ServeControl::stop() {
  const std::lock_guard lock(mutex_);
  if (ending()) return;
  log_info("stopping");
  ending_since_ = std::chrono::steady_clock::now();
  stopping_ = true;
  apply();
}

void ServeControl::fail(const Error& error) {
  const std::lock_guard lock(mutex_);
  if (failed_) return;
  ending_since_ = std::chrono::steady_clock::now();
  failure_ = error;
  failed_ = true;
  apply();
}

void ServeControl::apply() {
  if (failed_) {
    if (server_ != nullptr) server_->set_phase(Phase::failed, failure_->what());
    if (engine_ != nullptr) engine_->fail(*failure_);
    if (communicator_ != nullptr) communicator_->abort();
  } else if (stopping_) {
    if (server_ != nullptr) server_->set_phase(Phase::stopping);
    if (communicator_ != nullptr) communicator_->announce_stop();
    if (engine_ != nullptr) engine_->stop();
  }
}

std::optional<Error> ServeControl::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void ServeControl::throw_if_ending() const {
  if (const auto error = failure()) throw *error;
  if (stopping_) throw Error(ErrorKind::interrupted, "stopped while loading");
}

void ServeControl::watch(Server* server) {
  const std::lock_guard lock(mutex_);
  server_ = server;
  apply();
}

void ServeControl::watch(Communicator* communicator) {
  const std::lock_guard lock(mutex_);
  communicator_ = communicator;
  apply();
}

void ServeControl::watch(Engine* engine) {
  const std::lock_guard lock(mutex_);
  engine_ = engine;
  apply();
}

}  // namespace tandem
