// Splits a pack of noise for two ranks, checks every byte of the result, and compares the speed with what bounds it:
// a plain copy of as many bytes on the same disk, and sha256 on the cores.
//
//   bench_split [--size 2GiB] [--folder DIR] [--world-size 2] [--threads N]

#include <fcntl.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "orchestrator/bench/synthetic_pack.h"
#include "orchestrator/split/split.h"
#include "runtime/common/error.h"
#include "runtime/common/file.h"
#include "runtime/common/hash.h"
#include "runtime/common/units.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void print_rate(const char* what, int64_t read, int64_t written, double seconds) {
  std::printf("%-22s read %10s, wrote %10s in %6.2f s: %5.2f GB/s read, %5.2f GB/s written\n", what,
              format_bytes(read).c_str(), format_bytes(written).c_str(), seconds,
              static_cast<double>(read) / seconds / 1e9, static_cast<double>(written) / seconds / 1e9);
}

/// The files' pages must come from the disk, not from memory.
void drop_cache(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const FileDescriptor file = open_for_reading(entry.path(), ErrorKind::node);
    ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
}

/// cp, by as many threads as the split uses: what the disk can do, without hashing.
int64_t plain_copy(const fs::path& from, const fs::path& to, int threads) {
  make_folders(to, ErrorKind::node);
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(from))
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::atomic<size_t> next{0};
  std::atomic<int64_t> total{0};
  const auto work = [&] {
    std::vector<std::byte> buffer(4 << 20);
    for (size_t i; (i = next++) < files.size();) {
      const FileDescriptor source = open_for_reading(files[i], ErrorKind::node);
      const FileDescriptor target(
          ::open((to / files[i].filename()).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
      const int64_t size = file_bytes(source, files[i], ErrorKind::node);
      for (int64_t at = 0; at < size; at += static_cast<int64_t>(buffer.size())) {
        const auto piece = std::span(buffer).first(std::min<size_t>(buffer.size(), static_cast<size_t>(size - at)));
        read_exactly(source, at, piece, files[i], ErrorKind::node);
        if (::write(target.get(), piece.data(), piece.size()) != static_cast<ssize_t>(piece.size()))
          throw Error(ErrorKind::node, "cannot write the copy", to.string());
        total += static_cast<int64_t>(piece.size());
      }
      ::fsync(target.get());
    }
  };
  std::vector<std::jthread> workers;
  for (int i = 0; i < threads; ++i) workers.emplace_back(work);
  workers.clear();
  return total;
}

double sha256_bytes_per_second() {
  constexpr int64_t kBytes = 1 << 30;
  const std::vector<std::byte> piece(4 << 20);
  Hasher hasher;
  const auto start = Clock::now();
  for (int64_t done = 0; done < kBytes; done += static_cast<int64_t>(piece.size())) hasher.update(piece);
  hasher.finish_hex();
  return static_cast<double>(kBytes) / seconds_since(start);
}

/// Memory of this process that is not a mapped file, in bytes.
int64_t anonymous_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8)) * 1024;
  return 0;
}

class PeakMemory {
 public:
  PeakMemory()
      : sampler_([this](std::stop_token stop) {
          while (!stop.stop_requested()) {
            peak_ = std::max(peak_.load(), anonymous_bytes());
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
          }
        }) {}
  int64_t stop() {
    sampler_.request_stop();
    sampler_.join();
    return peak_;
  }

 private:
  std::atomic<int64_t> peak_{0};
  std::jthread sampler_;
};

struct Flags {
  int64_t size = int64_t{2} << 30;
  fs::path folder = fs::temp_directory_path();
  int world_size = 2;
  int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
};

Flags parse_flags(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    const std::string value = i + 1 < argc ? argv[i + 1] : "";
    const auto bytes = parse_bytes(value);
    if (name == "--size" && bytes)
      flags.size = *bytes;
    else if (name == "--folder" && !value.empty())
      flags.folder = value;
    else if (name == "--world-size" && std::atoi(value.c_str()) > 1)
      flags.world_size = std::atoi(value.c_str());
    else if (name == "--threads" && std::atoi(value.c_str()) > 0)
      flags.threads = std::atoi(value.c_str());
    else
      throw Error(ErrorKind::usage, "unknown flag or value: " + name + " " + value, "",
                  "bench_split [--size 2GiB] [--folder DIR] [--world-size N] [--threads N]");
  }
  return flags;
}

/// Removed at the end, also after an error.
struct WorkFolder {
  explicit WorkFolder(const fs::path& parent) : path(parent / "tandem-bench-split-XXXXXX") {
    std::string name = path.string();
    if (!::mkdtemp(name.data())) throw Error(ErrorKind::usage, "cannot create a folder", parent.string());
    path = name;
  }
  ~WorkFolder() {
    std::error_code code;
    fs::remove_all(path, code);
  }
  fs::path path;
};

int run(const Flags& flags) {
  const WorkFolder work(flags.folder);
  const fs::path pack = work.path / "pack";
  SyntheticPackOptions options = synthetic_pack_of(flags.size);
  options.shard_bytes = std::max<int64_t>(flags.size / 8, 1 << 20);
  const int64_t pack_bytes = write_synthetic_pack(pack, options);
  std::printf("pack: %s, %d layers of %d experts, threads: %d\n", format_bytes(pack_bytes).c_str(),
              options.config.num_hidden_layers, options.config.num_experts, flags.threads);

  drop_cache(pack);
  auto start = Clock::now();
  const int64_t copied = plain_copy(pack, work.path / "copy", flags.threads);
  const double copy_seconds = seconds_since(start);
  fs::remove_all(work.path / "copy");
  print_rate("plain copy", copied, copied, copy_seconds);

  drop_cache(pack);
  PeakMemory memory;
  start = Clock::now();
  const SplitResult result = split_pack({.pack_folder = pack,
                                         .ranks_folder = work.path / "ranks",
                                         .world_size = flags.world_size,
                                         .threads = flags.threads,
                                         .disk_reserve_bytes = 0});
  const double split_seconds = seconds_since(start);
  const int64_t peak = memory.stop();
  int64_t written = 0;
  std::vector<fs::path> folders;
  for (const SplitResult::Rank& rank : result.ranks) {
    written += rank.bytes;
    folders.push_back(rank.folder);
  }
  print_rate("split", pack_bytes, written, split_seconds);

  const double sha256 = sha256_bytes_per_second();
  const double copy_rate = static_cast<double>(copied) / copy_seconds;
  const double split_rate = static_cast<double>(written) / split_seconds;
  std::printf("sha256: %.2f GB/s a core, %.2f GB/s on %d threads\n", sha256 / 1e9, sha256 * flags.threads / 1e9,
              flags.threads);
  std::printf("split: %.0f %% of the plain copy, %.0f %% of sha256; peak memory %s (unmapped, limit 256 MiB)\n",
              100 * split_rate / copy_rate, 100 * split_rate / (sha256 * flags.threads), format_bytes(peak).c_str());

  const std::string problem = compare_split(pack, folders);
  std::printf("re-joined: %s\n", problem.empty() ? "every byte equal" : problem.c_str());
  return problem.empty() && peak <= int64_t{256} << 20 ? 0 : 1;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  try {
    return tandem::run(tandem::parse_flags(argc, argv));
  } catch (const tandem::Error& e) {
    std::fputs(e.report().c_str(), stderr);
    return tandem::exit_code(e.kind());
  }
}
