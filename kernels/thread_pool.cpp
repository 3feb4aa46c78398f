#include "kernels/thread_pool.h"

#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace tandem {
namespace {

// Decoding one token is hundreds of short loops with little in between: a worker that sleeps at once would pay a
// wake-up (~50 us) for every one of them. Spinning longer than a loop's gap steals time from other processes.
constexpr int kSpins = 2000;

void spin_pause() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

/// Returns once `value` differs from `old`, and what it is then.
template <typename T>
T wait_for_change(const std::atomic<T>& value, T old) {
  for (int i = 0; i < kSpins; ++i) {
    const T now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    spin_pause();
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

}  // namespace

struct ThreadPool::Team {
  struct alignas(64) Share {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };

  explicit Team(int threads) : shares(threads) {}

  ~Team() {
    stopping.store(true, std::memory_order_relaxed);
    generation.fetch_add(1, std::memory_order_release);
    generation.notify_all();
    for (std::thread& worker : workers) worker.join();
  }

  void work(int thread) {
    const int n = static_cast<int>(shares.size());
    for (int i = 0; i < n; ++i) {
      Share& share = shares[(thread + i) % n];
      while (!failed.load(std::memory_order_relaxed)) {
        const int64_t t = share.next.fetch_add(1, std::memory_order_relaxed);
        if (t >= share.end) break;
        try {
          task(context, t, thread);
        } catch (...) {
          const std::lock_guard<std::mutex> lock(error_mutex);
          if (!failed.exchange(true)) error = std::current_exception();
        }
      }
    }
  }

  std::vector<Share> shares;
  Task task = nullptr;
  void* context = nullptr;

  // A loop starts when `generation` moves on and ends when `busy` reaches 0: only then may the caller touch the
  // fields above again.
  alignas(64) std::atomic<uint32_t> generation{0};
  alignas(64) std::atomic<int> busy{0};
  std::atomic<bool> stopping{false};
  std::atomic<bool> failed{false};
  std::mutex error_mutex;
  std::exception_ptr error;
  std::vector<std::thread> workers;
};

ThreadPool::ThreadPool(int threads) : threads_(threads < 1 ? 1 : threads) {
  if (threads_ == 1) return;
  team_ = std::make_unique<Team>(threads_);
  Team* team = team_.get();
  for (int thread = 1; thread < threads_; ++thread) {
    team->workers.emplace_back([team, thread] {
      uint32_t seen = 0;
      while (true) {
        seen = wait_for_change(team->generation, seen);
        if (team->stopping.load(std::memory_order_relaxed)) return;
        team->work(thread);
        if (team->busy.fetch_sub(1, std::memory_order_acq_rel) == 1) team->busy.notify_one();
      }
    });
  }
}

ThreadPool::~ThreadPool() = default;

void ThreadPool::run(int64_t count, Task task, void* context) {
  if (!team_ || count <= 1) {
    for (int64_t t = 0; t < count; ++t) task(context, t, 0);
    return;
  }
  Team& team = *team_;
  team.task = task;
  team.context = context;
  team.failed.store(false, std::memory_order_relaxed);
  for (int i = 0; i < threads_; ++i) {
    team.shares[i].next.store(count * i / threads_, std::memory_order_relaxed);
    team.shares[i].end = count * (i + 1) / threads_;
  }
  team.busy.store(threads_ - 1, std::memory_order_relaxed);
  team.generation.fetch_add(1, std::memory_order_release);
  team.generation.notify_all();
  team.work(0);
  for (int busy = team.busy.load(std::memory_order_acquire); busy != 0;) busy = wait_for_change(team.busy, busy);
  if (team.error) std::rethrow_exception(std::exchange(team.error, nullptr));
}

}  // namespace tandem
