#include "runtime/cli/interrupt.h"

#include <csignal>

#include "runtime/common/error.h"

namespace tandem {
namespace {

volatile std::sig_atomic_t signal_seen = 0;

void on_signal(int) {
  signal_seen = 1;
}

}  // namespace

void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() {
  return signal_seen != 0;
}

void throw_if_interrupted() {
  if (interrupted()) throw Error(ErrorKind::interrupted, "interrupted");
}

}  // namespace tandem
