#include "orchestrator/split/split.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>

#include "orchestrator/split/partial_folder.h"
#include "orchestrator/split/shard_copy.h"
#include "orchestrator/split/shard_plan.h"
#include "runtime/common/ling_config.h"
#include "runtime/common/log.h"
#include "runtime/common/manifest.h"
#include "runtime/common/units.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxSmallFileBytes = 256 << 20;
constexpr int64_t kBufferBudgetBytes = 96 << 20;  ///< of all threads together
constexpr int kMaxThreads = 8;
constexpr auto kProgressInterval = std::chrono::milliseconds(200);

std::vector<int> chosen_ranks(const std::vector<int>& ranks, int world_size) {
  std::vector<int> chosen = ranks;
  if (chosen.empty()) {
    chosen.resize(static_cast<size_t>(world_size));
    std::iota(chosen.begin(), chosen.end(), 0);
  }
  std::sort(chosen.begin(), chosen.end());
  chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
  if (chosen.front() < 0 || chosen.back() >= world_size)
    throw Error(ErrorKind::split,
                "rank " + std::to_string(chosen.front() < 0 ? chosen.front() : chosen.back()) +
                    " is not one of the world's " + std::to_string(world_size),
                "", "ranks count from 0");
  return chosen;
}

bool is_quantized(const Pack& pack) {
  return std::any_of(pack.tensors().begin(), pack.tensors().end(),
                     [](const PackTensor& t) { return t.info.name.ends_with(".trellis"); });
}

/// A pack, understood: everything that does not depend on the rank.
struct Source {
  Pack pack;
  ModuleTable table;
  std::vector<std::string> unused_tensors;
};

Source open_source(const fs::path& folder, int world_size) {
  if (world_size < 2)
    throw Error(ErrorKind::split, "world size " + std::to_string(world_size) + " needs no split", folder.string(),
                "serve the pack's own folder: tandem-runtime serve --pack " + folder.string());
  if (is_rank_folder(folder))
    throw Error(ErrorKind::split, "this is a rank folder already, not a pack", folder.string(),
                "give the folder of the whole pack");
  Pack pack = Pack::open(folder);
  const LingConfig config = parse_ling_config(pack.config_text(), (pack.folder() / "config.json").string());
  const std::vector<std::string> reasons = why_not_divisible(config, world_size, is_quantized(pack));
  if (!reasons.empty()) {
    std::string what = "the model cannot be cut for " + std::to_string(world_size) + " ranks: ";
    for (size_t i = 0; i < reasons.size(); ++i) what += (i ? "; " : "") + reasons[i];
    throw Error(ErrorKind::split, what, folder.string(), "use a world size that divides them");
  }
  ModuleTable table(config);
  std::vector<std::string> unused = check_tensors(pack, table, 1);
  return {std::move(pack), std::move(table), std::move(unused)};
}

/// Mean bits per weight of each component as the pack stores it; 16 for what is not quantized.
ComponentBits stored_bits(const Source& source) {
  std::array<double, kNumComponents> weights{}, bits{};
  for (const Module& module : source.table.modules()) {
    if (!module.quantizable) continue;
    auto linear = source.pack.find_exl3(module.name, false);
    if (!linear && !module.fused_name.empty()) linear = source.pack.find_exl3(module.fused_name, false);
    const auto component = static_cast<size_t>(module.component);
    const auto elements = static_cast<double>(module.elements());
    weights[component] += elements;
    bits[component] += elements * (linear ? linear->bits_per_weight() : 16.0);
  }
  ComponentBits mean;
  for (size_t i = 0; i < weights.size(); ++i)
    if (weights[i] > 0) mean.bits[i] = bits[i] / weights[i];
  return mean;
}

int64_t file_bytes_of(const ShardPlan& plan, size_t position) {
  std::vector<TensorInfo> tensors = plan.stored_tensors(position);
  const auto header = static_cast<int64_t>(build_safetensors_header(tensors, kRankFileMetadata).size());
  return header + (tensors.empty() ? 0 : tensors.back().end);
}

/// One rank's folder while it is being written.
struct RankWork {
  int rank = 0;
  fs::path final_path;
  std::unique_ptr<PartialFolder> partial;
  std::vector<int64_t> file_bytes;  ///< one per file of the pack
};

class Splitter {
 public:
  Splitter(const SplitOptions& options, const Source& source, const std::atomic<bool>* cancel)
      : options_(options), source_(source), cancel_(cancel) {}

  /// @param ranks  those whose folders are not there yet
  void run(std::vector<RankWork>& ranks, const std::function<void(const SplitProgress&)>& progress) {
    ranks_ = &ranks;
    for (const RankWork& work : ranks) rank_numbers_.push_back(work.rank);
    measure();
    try {
      check_disk();
    } catch (...) {
      for (const RankWork& work : ranks)
        if (work.partial->finished_bytes() == 0) work.partial->discard();
      throw;
    }
    copy_all(progress);
    for (RankWork& work : ranks) {
      copy_small_files(work);
      write_rank_manifest(work);
      work.partial->publish();
    }
  }

 private:
  int num_files() const { return static_cast<int>(source_.pack.files().size()); }

  ShardPlan plan(int file) const {
    return plan_shard(source_.pack, source_.table, file, options_.world_size, rank_numbers_);
  }

  void measure() {
    for (int file = 0; file < num_files(); ++file) {
      const ShardPlan shard = plan(file);
      bool needed = false;
      for (size_t position = 0; position < ranks_->size(); ++position) {
        RankWork& work = (*ranks_)[position];
        const int64_t bytes = shard.jobs.empty() ? 0 : file_bytes_of(shard, position);
        work.file_bytes.push_back(bytes);
        total_.bytes_total += bytes;
        if (work.partial->find(shard.name))
          bytes_done_ += bytes;
        else
          needed = needed || bytes > 0;
      }
      if (needed) pending_.push_back(file);
    }
    total_.files_total = num_files();
    files_done_ = num_files() - static_cast<int>(pending_.size());
  }

  void check_disk() const {
    const int64_t needed = total_.bytes_total - bytes_done_;
    const int64_t available = free_disk_bytes(options_.ranks_folder, ErrorKind::split);
    if (needed > available - options_.disk_reserve_bytes)
      throw Error(ErrorKind::split,
                  "the rank folders need " + format_bytes(needed) + ", the disk has " + format_bytes(available) +
                      " free, of which " + format_bytes(options_.disk_reserve_bytes) + " stay in reserve",
                  options_.ranks_folder.string(), "free some space, or choose another folder for ranks");
  }

  void copy_all(const std::function<void(const SplitProgress&)>& progress) {
    const int wanted = options_.threads > 0 ? options_.threads : static_cast<int>(std::thread::hardware_concurrency());
    const int threads = std::clamp(wanted, 1, std::min(kMaxThreads, std::max(1, static_cast<int>(pending_.size()))));
    const int64_t buffers = threads * (1 + static_cast<int64_t>(ranks_->size()));
    const int64_t buffer_bytes = std::clamp<int64_t>(kBufferBudgetBytes / buffers, 64 << 10, 4 << 20);
    {
      std::vector<std::jthread> workers;
      running_ = threads;
      for (int i = 0; i < threads; ++i) workers.emplace_back([this, buffer_bytes] { work_off(buffer_bytes); });
      std::unique_lock lock(mutex_);
      while (!idle_.wait_for(lock, kProgressInterval, [&] { return running_ == 0; })) {
        if (cancel_ && *cancel_) stop_ = true;
        lock.unlock();
        report(progress);
        lock.lock();
      }
    }
    // A cancelled copy ends with an error of its own, but the cause is what the caller asked for.
    if (cancel_ && *cancel_)
      throw Error(ErrorKind::interrupted, "the split was interrupted", options_.ranks_folder.string(),
                  "run it again: files that are finished are kept");
    if (failure_) std::rethrow_exception(failure_);
    report(progress);
  }

  void report(const std::function<void(const SplitProgress&)>& progress) const {
    if (!progress) return;
    SplitProgress now = total_;
    now.bytes_done = bytes_done_;
    now.files_done = files_done_;
    progress(now);
  }

  void work_off(int64_t buffer_bytes) {
    try {
      for (size_t next; !stop_ && (next = next_pending_++) < pending_.size();) copy_file(pending_[next], buffer_bytes);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      stop_ = true;
    }
    const std::lock_guard lock(mutex_);
    if (--running_ == 0) idle_.notify_all();
  }

  void copy_file(int file, int64_t buffer_bytes) {
    const ShardPlan shard = plan(file);
    std::vector<ShardTarget> targets;
    for (size_t position = 0; position < ranks_->size(); ++position) {
      const RankWork& work = (*ranks_)[position];
      if (!work.partial->find(shard.name)) targets.push_back({position, work.partial->path(), {}});
    }
    copy_shard(source_.pack, shard, targets, buffer_bytes, bytes_done_, stop_);
    for (const ShardTarget& target : targets)
      (*ranks_)[target.position].partial->add({shard.name, target.result.bytes, target.result.sha256});
    ++files_done_;
  }

  void copy_small_files(const RankWork& work) const {
    for (const std::string& name : source_.pack.small_files()) {
      if (work.partial->find(name)) continue;
      const std::string text = read_small_file(source_.pack.folder() / name, kMaxSmallFileBytes, ErrorKind::split);
      StreamedFile file(work.partial->path() / name, static_cast<int64_t>(text.size()), ErrorKind::split);
      file.append(std::as_bytes(std::span(text)));
      const StreamedFile::Finished result = file.finish();
      work.partial->add({name, result.bytes, result.sha256});
    }
  }

  void write_rank_manifest(const RankWork& work) const {
    Manifest manifest;
    manifest.pack_repo = options_.pack_repo;
    manifest.pack_commit = options_.pack_commit;
    manifest.pack_hash = source_.pack.content_hash();
    manifest.family = kLingArchitecture;
    manifest.world_size = options_.world_size;
    manifest.rank = work.rank;
    manifest.bits = stored_bits(source_);
    std::vector<int> weight_files;
    for (int file = 0; file < num_files(); ++file)
      if (work.file_bytes[static_cast<size_t>(file)] > 0) weight_files.push_back(file);
    for (const int file : weight_files)
      manifest.files.push_back(*work.partial->find(source_.pack.files()[static_cast<size_t>(file)].name));
    for (const std::string& name : source_.pack.small_files()) manifest.files.push_back(*work.partial->find(name));

    size_t next_file = 0, next_job = 0;
    ShardPlan shard;
    std::vector<TensorInfo> stored;
    write_manifest(work.partial->path(), manifest, [&](ManifestTensor& tensor) {
      while (next_job == stored.size()) {
        if (next_file == weight_files.size()) return false;
        shard = plan_shard(source_.pack, source_.table, weight_files[next_file++], options_.world_size, {work.rank});
        std::erase_if(shard.jobs, [](const TensorJob& job) { return !job.slices[0].present; });
        stored = shard.stored_tensors(0);
        build_safetensors_header(stored, kRankFileMetadata);
        next_job = 0;
      }
      const TensorJob& job = shard.jobs[next_job];
      tensor = {.info = stored[next_job],
                .file = static_cast<int>(next_file) - 1,
                .full_shape = job.source->info.shape,
                .axis = job.slices[0].axis,
                .ranges = job.slices[0].ranges};
      ++next_job;
      return true;
    });
  }

  const SplitOptions& options_;
  const Source& source_;
  const std::atomic<bool>* cancel_;
  std::vector<RankWork>* ranks_ = nullptr;
  std::vector<int> rank_numbers_;
  SplitProgress total_;
  std::vector<int> pending_;  ///< files of the pack that some rank still lacks

  std::atomic<size_t> next_pending_{0};
  std::atomic<int64_t> bytes_done_{0};
  std::atomic<int> files_done_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable idle_;
  int running_ = 0;             // under mutex_
  std::exception_ptr failure_;  // under mutex_
};

/// True when the folder is whole and of this pack. A damaged or foreign one is no error: the split replaces it.
bool is_there(const fs::path& folder, const ManifestExpectation& expected, bool warn) {
  if (!is_rank_folder(folder)) return false;
  try {
    check_manifest(folder, read_manifest(folder, false), expected);
    remove_left_journal(folder);
    return true;
  } catch (const Error& e) {
    if (warn)
      log_warn("rank folder cannot be used and is written anew", {{"folder", folder.string()}, {"reason", e.what()}});
    return false;
  }
}

int64_t folder_bytes(const fs::path& folder) {
  const Manifest manifest = read_manifest(folder, false);
  return std::accumulate(manifest.files.begin(), manifest.files.end(), int64_t{0},
                         [](int64_t sum, const ManifestFile& file) { return sum + file.bytes; });
}

}  // namespace

SplitResult split_pack(const SplitOptions& options, const std::function<void(const SplitProgress&)>& progress,
                       const std::atomic<bool>* cancel) {
  const Source source = open_source(options.pack_folder, options.world_size);
  const std::vector<int> ranks = chosen_ranks(options.ranks, options.world_size);
  const std::string& hash = source.pack.content_hash();
  const std::string key =
      options.pack_key.empty() ? pack_key(source.pack.folder().filename().string(), hash) : options.pack_key;

  SplitResult result{.ranks = {}, .unused_tensors = source.unused_tensors};
  std::vector<RankWork> missing;
  for (const int rank : ranks) {
    const fs::path folder = rank_folder_path(options.ranks_folder, key, options.world_size, rank);
    const ManifestExpectation expected{.world_size = options.world_size, .rank = rank, .pack_hash = hash};
    SplitResult::Rank outcome{.rank = rank, .folder = folder};
    outcome.already_there = is_there(folder, expected, true);
    if (!outcome.already_there) {
      const std::string identity = "tandem.split-journal/v1 " + hash + " layout " +
                                   std::to_string(kSplitLayoutVersion) + " rank " + std::to_string(rank) + " of " +
                                   std::to_string(options.world_size);
      auto partial = std::make_unique<PartialFolder>(folder, identity);
      // Another process may have finished it while we waited for the folder.
      outcome.already_there = is_there(folder, expected, false);
      if (outcome.already_there) {
        partial->discard();
      } else {
        outcome.bytes_resumed = partial->finished_bytes();
        missing.push_back({.rank = rank, .final_path = folder, .partial = std::move(partial), .file_bytes = {}});
      }
    }
    result.ranks.push_back(std::move(outcome));
  }
  if (!missing.empty()) Splitter(options, source, cancel).run(missing, progress);
  for (SplitResult::Rank& rank : result.ranks) rank.bytes = folder_bytes(rank.folder);
  return result;
}

std::vector<int64_t> planned_rank_bytes(const fs::path& pack_folder, int world_size, const std::vector<int>& ranks) {
  const Source source = open_source(pack_folder, world_size);
  const std::vector<int> chosen = chosen_ranks(ranks, world_size);
  std::vector<int64_t> bytes(chosen.size(), 0);
  for (int file = 0; file < static_cast<int>(source.pack.files().size()); ++file) {
    const ShardPlan shard = plan_shard(source.pack, source.table, file, world_size, chosen);
    if (shard.jobs.empty()) continue;
    for (size_t position = 0; position < chosen.size(); ++position) bytes[position] += file_bytes_of(shard, position);
  }
  return bytes;
}

}  // namespace tandem
