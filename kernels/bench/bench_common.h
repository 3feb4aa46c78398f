#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tandem::bench {

/// Best of several timings of `run`, in seconds of the calling thread's own processor time, so that other programs
/// count only by what they push out of the caches; the best, because disturbances only ever add. For single-threaded
/// work: pass no pool.
/// @param seconds  how long to go on, as the clock on the wall has it
double best_seconds(const std::function<void()>& run, double seconds = 0.4);

/// Bytes a second that one thread reads from memory: the sum of a buffer far larger than the caches. Measured once.
double read_bandwidth();

/// Name of the instruction set that the kernels chose.
std::string instruction_set();

/// Has the kernels choose no better instruction set than `name` ("AVX2"; "" for the best one); false when there is
/// none.
bool use_instruction_set(const std::string& name);

/// A table on stdout: a line of headings, then rows of cells, aligned to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> headings);
  void row(const std::vector<std::string>& cells);

 private:
  std::vector<size_t> widths_;
};

std::string number(double value, int decimals);

/// "error: ..." on stderr and exit code 1: a benchmark of a wrong result would be worthless.
[[noreturn]] void fail(const std::string& what);

}  // namespace tandem::bench
