#include "orchestrator/cli/interrupt.h"

#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "runtime/common/error.h"

namespace tandem::cli {
namespace {

struct Shared {
  std::stop_source source;
  std::atomic<bool> flag = false;
};

/// Outlives main on purpose: the waiting thread uses it to the last moment.
Shared& shared() {
  static Shared* const instance = new Shared;
  return *instance;
}

void say(const char* text, size_t size) {
  [[maybe_unused]] const auto written = write(STDERR_FILENO, text, size);
}

}  // namespace

Interrupts::Interrupts() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int s : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, s);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  shared();
  std::thread([signals] {
    auto last = std::chrono::steady_clock::time_point::min();
    for (int count = 1;; ++count) {
      int received = 0;
      sigwait(&signals, &received);
      // Shells and wrappers may send one Ctrl-C twice, to the process and to its group.
      const auto now = std::chrono::steady_clock::now();
      if (count > 1 && now - last < std::chrono::milliseconds(300)) {
        --count;
        continue;
      }
      last = now;
      if (count == 1) {
        shared().flag = true;
        shared().source.request_stop();
      } else if (count == 2) {
        constexpr char kText[] = "\nstill cleaning up; once more to leave it undone\n";
        say(kText, sizeof kText - 1);
      } else {
        _exit(exit_code(ErrorKind::interrupted));
      }
    }
  }).detach();
}

std::stop_token Interrupts::token() const {
  return shared().source.get_token();
}
bool Interrupts::happened() const {
  return shared().flag;
}
const std::atomic<bool>& Interrupts::flag() const {
  return shared().flag;
}

}  // namespace tandem::cli
