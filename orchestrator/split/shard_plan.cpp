#include "orchestrator/split/shard_plan.h"

#include <algorithm>
#include <bit>

namespace tandem {
namespace {

constexpr uint64_t kAlignment = 64;

/// The largest power of two up to 64 that divides `bytes`.
uint64_t alignment_of(int64_t bytes) {
  return bytes == 0 ? kAlignment : std::min(kAlignment, uint64_t{1} << std::countr_zero(static_cast<uint64_t>(bytes)));
}

int64_t stored_bytes(const TensorJob& job) {
  int64_t bytes = dtype_bytes(job.source->info.dtype);
  for (const int64_t n : job.slices[0].shape) bytes *= n;
  return bytes;
}

}  // namespace

std::vector<TensorInfo> ShardPlan::stored_tensors(size_t position) const {
  std::vector<TensorInfo> tensors;
  tensors.reserve(jobs.size());
  for (const TensorJob& job : jobs) {
    const Slice& slice = job.slices[position];
    if (slice.present)
      tensors.push_back({.name = job.source->info.name, .dtype = job.source->info.dtype, .shape = slice.shape});
  }
  return tensors;
}

ShardPlan plan_shard(const Pack& pack, const ModuleTable& table, int file, int world_size,
                     const std::vector<int>& ranks) {
  ShardPlan plan{.name = pack.files()[static_cast<size_t>(file)].name, .jobs = {}};
  const std::vector<PackTensor>& all = pack.tensors();
  const auto by_file = [](const PackTensor& t, int f) { return t.file < f; };
  for (auto it = std::lower_bound(all.begin(), all.end(), file, by_file); it != all.end() && it->file == file; ++it) {
    const auto name = understand_name(table, it->info.name);
    if (!name) continue;
    TensorJob job{.source = &*it, .slices = {}};
    for (const int rank : ranks) job.slices.push_back(slice_of(*name, it->info, world_size, rank));
    plan.jobs.push_back(std::move(job));
  }
  std::stable_sort(plan.jobs.begin(), plan.jobs.end(), [](const TensorJob& a, const TensorJob& b) {
    return alignment_of(stored_bytes(a)) > alignment_of(stored_bytes(b));
  });
  return plan;
}

}  // namespace tandem
