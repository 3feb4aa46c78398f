#include "kernels/thread_pool.h"

#include <atomic>
#include <stdexcept>
#include <vector>

#include "tests/catch.h"

namespace tandem {
namespace {

TEST_CASE("every task of a loop runs once, whatever the number of threads", "[thread_pool]") {
  for (const int threads : {0, 1, 2, 5, 16}) {
    ThreadPool pool(threads);
    CHECK(pool.threads() == std::max(threads, 1));
    for (const int64_t count : {0, 1, 2, 7, 1000}) {
      INFO("threads " << threads << ", tasks " << count);
      std::vector<std::atomic<int>> runs(static_cast<size_t>(count));
      std::atomic<bool> known_threads{true};
      pool.parallel_for(count, [&](int64_t task, int thread) {
        runs[task].fetch_add(1);
        if (thread < 0 || thread >= pool.threads()) known_threads = false;
      });
      for (const std::atomic<int>& n : runs) CHECK(n == 1);
      CHECK(known_threads);
    }
  }
}

TEST_CASE("what tasks wrote is seen after the loop, loop after loop", "[thread_pool]") {
  ThreadPool pool(4);
  std::vector<int64_t> values(64, 0);
  for (int loop = 0; loop < 2000; ++loop) {
    pool.parallel_for(64, [&](int64_t task, int) { values[task] += task; });
  }
  for (int64_t i = 0; i < 64; ++i) CHECK(values[i] == 2000 * i);
}

TEST_CASE("a task's exception reaches the caller and the pool goes on", "[thread_pool]") {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    CHECK_THROWS_AS(pool.parallel_for(100,
                                      [](int64_t task, int) {
                                        if (task == 50) throw std::runtime_error("task 50");
                                      }),
                    std::runtime_error);
    std::atomic<int> runs{0};
    pool.parallel_for(100, [&](int64_t, int) { ++runs; });
    CHECK(runs == 100);
  }
}

}  // namespace
}  // namespace tandem
