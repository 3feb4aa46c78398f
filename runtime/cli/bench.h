#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "runtime/model/model.h"

namespace tandem {

struct BenchOptions {
  int64_t prompt_tokens = 512;
  int64_t generated_tokens = 64;
  int64_t verified_rows = 4;             ///< rows of the passes that stand for drafted decoding
  int repetitions = 3;                   ///< the median counts
  std::function<void()> between_passes;  ///< may throw
};

struct BenchResult {
  double prefill_tokens_per_second = 0;
  double decode_tokens_per_second = 0;  ///< serial: one row a pass
  double verify_rows_per_second = 0;    ///< verified_rows a pass
  double load_seconds = 0;              ///< filled in by the caller
  double read_bytes_per_second = 0;     ///< of this machine's memory, measured with the model's number of threads
  int threads = 0;
  ModelMemory memory;

  /// Share of the machine's read bandwidth that serial decoding's weights alone take. Above 1 when they stay in cache.
  double bandwidth_share() const;
};

/// Times prefill and decode without sampling or HTTP. Collective: all ranks call it with the same options.
BenchResult run_bench(Model& model, const BenchOptions& options);

/// Bytes a second that `threads` threads read together from memory that no cache holds.
double measure_read_bandwidth(int threads);

std::string bench_text(const BenchOptions& options, const BenchResult& result, bool as_json);

}  // namespace tandem
