#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <type_traits>

namespace tandem {

/// A fixed team of threads for data-parallel loops.
///
/// Work is cut by the caller into `count` tasks whose results must not depend on which thread runs them; then results
/// do not depend on the number of threads either. A thread starts on its own contiguous share of the tasks, so that a
/// loop repeated over the same weights finds them in the same core's cache, and helps the others when it is done, so
/// that cores of different speed finish together.
///
/// One thread at a time may call parallel_for (the one that owns the model's step). Workers spin for some microseconds
/// after a loop and then sleep.
class ThreadPool {
 public:
  /// @param threads  threads that work on a loop, the calling one included; 1 or less runs everything inline
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  /// Calls fn(task, thread) once for every task in [0, count), thread in [0, threads()); returns when all are done.
  /// What the tasks wrote is visible to the caller afterwards. An exception of a task is rethrown here, once the others
  /// have ended; tasks that had not started then are left out. Must not be called from inside a task.
  template <typename Fn>
  void parallel_for(int64_t count, Fn&& fn) {
    run(
        count,
        [](void* context, int64_t task, int thread) {
          (*static_cast<std::remove_reference_t<Fn>*>(context))(task, thread);
        },
        const_cast<void*>(static_cast<const void*>(std::addressof(fn))));
  }

 private:
  using Task = void (*)(void* context, int64_t task, int thread);
  struct Team;

  void run(int64_t count, Task task, void* context);

  int threads_;
  std::unique_ptr<Team> team_;  // null when everything runs inline
};

}  // namespace tandem
