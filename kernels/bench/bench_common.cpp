#include "kernels/bench/bench_common.h"

#include <hwy/targets.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace tandem::bench {
namespace {

double seconds_of(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

/// The sum of words[first, last): sums side by side, so that additions do not wait for each other.
uint64_t sum_of(const std::vector<uint64_t>& words, size_t first, size_t last) {
  uint64_t sums[16] = {};
  for (size_t i = first; i + 16 <= last; i += 16) {
    for (size_t j = 0; j < 16; ++j) sums[j] += words[i + j];
  }
  uint64_t sum = 0;
  for (const uint64_t s : sums) sum += s;
  return sum;
}

}  // namespace

double best_seconds(const std::function<void()>& run, double seconds) {
  run();
  const double begin = seconds_of(CLOCK_MONOTONIC);
  double best = 1e30;
  // Calls shorter than 100 us are timed in batches: reading this clock takes about a microsecond.
  int64_t batch = 1;
  do {
    const double start = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    for (int64_t i = 0; i < batch; ++i) run();
    const double elapsed = seconds_of(CLOCK_THREAD_CPUTIME_ID) - start;
    best = std::min(best, elapsed / static_cast<double>(batch));
    if (elapsed < 1e-4) batch *= 2;
  } while (seconds_of(CLOCK_MONOTONIC) - begin < seconds);
  return best;
}

double read_bandwidth() {
  static const double bandwidth = [] {
    // Piece by piece, so that one piece at least escapes other programs; each comes around again only after 1 GiB.
    const std::vector<uint64_t> words(size_t{1} << 27, 1);
    const size_t piece = size_t{1} << 21;  // 16 MiB
    size_t first = 0;
    volatile uint64_t sink = 0;
    const double seconds = best_seconds(
        [&] {
          sink = sink + sum_of(words, first, first + piece);
          first = (first + piece) % words.size();
        },
        2.0);
    return static_cast<double>(piece * sizeof(uint64_t)) / seconds;
  }();
  return bandwidth;
}

std::string instruction_set() {
  const int64_t targets = hwy::SupportedTargets();
  return hwy::TargetName(targets & -targets);
}

bool use_instruction_set(const std::string& name) {
  hwy::SetSupportedTargetsForTest(0);
  if (name.empty()) return true;
  for (int64_t left = hwy::SupportedTargets(); left != 0; left &= left - 1) {
    if (name == hwy::TargetName(left & -left)) {
      hwy::SetSupportedTargetsForTest(left);  // older ones stay: not every file is compiled for each
      return true;
    }
  }
  return false;
}

Table::Table(std::vector<std::string> headings) {
  for (const std::string& heading : headings) widths_.push_back(std::max<size_t>(heading.size(), 8));
  row(headings);
}

void Table::row(const std::vector<std::string>& cells) {
  for (size_t i = 0; i < cells.size(); ++i) {
    std::printf("%s%*s", i == 0 ? "" : "  ", static_cast<int>(widths_[i]), cells[i].c_str());
  }
  std::printf("\n");
  std::fflush(stdout);
}

std::string number(double value, int decimals) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

void fail(const std::string& what) {
  std::fprintf(stderr, "error: %s\n", what.c_str());
  std::exit(1);
}

}  // namespace tandem::bench
