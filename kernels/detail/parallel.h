#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/thread_pool.h"

namespace tandem::detail {

/// Waking a team costs some microseconds: pieces of a loop should hold at least about this many simple steps.
inline constexpr int64_t kGrainFloats = 8192;

/// Columns of a KDA state that one item of a loop takes: 128 keys of them fill most of a first-level cache.
inline constexpr int64_t kStateColumns = 64;

/// Columns that elementwise operations take as one item of a loop.
inline constexpr int64_t kColumnBlock = 1024;

inline int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// Pieces of `item_floats` floats each that make up a grain.
inline int64_t grain_items(int64_t item_floats) {
  return std::max<int64_t>(1, kGrainFloats / std::max<int64_t>(1, item_floats));
}

inline int threads_of(const ThreadPool* pool) {
  return pool != nullptr ? pool->threads() : 1;
}

/// Calls fn(task, thread) for all tasks; inline without a pool.
template <typename Fn>
void parallel_tasks(ThreadPool* pool, int64_t count, Fn&& fn) {
  if (pool != nullptr && pool->threads() > 1 && count > 1) {
    pool->parallel_for(count, fn);
  } else {
    for (int64_t task = 0; task < count; ++task) fn(task, 0);
  }
}

/// Calls fn(first, last) on pieces of [0, count) of at least `grain` items; for loops whose items are independent.
template <typename Fn>
void parallel_ranges(ThreadPool* pool, int64_t count, int64_t grain, Fn&& fn) {
  if (count <= 0) return;
  const int64_t pieces = std::min<int64_t>(ceil_div(count, grain), 4 * threads_of(pool));
  if (pieces <= 1 || threads_of(pool) == 1) return fn(0, count);
  pool->parallel_for(pieces, [&](int64_t piece, int) { fn(count * piece / pieces, count * (piece + 1) / pieces); });
}

}  // namespace tandem::detail
