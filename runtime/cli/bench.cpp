#include "runtime/cli/bench.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/thread_pool.h"
#include "runtime/common/error.h"
#include "runtime/common/ling_config.h"
#include "runtime/common/units.h"

namespace tandem {
namespace {

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Tokens without a pattern, the same in every run and on every rank.
std::vector<int32_t> arbitrary_tokens(int64_t count, int64_t vocab_size) {
  std::vector<int32_t> tokens;
  uint64_t state = 1;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    tokens.push_back(static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocab_size)));
  }
  return tokens;
}

std::string format(const char* pattern, double value) {
  char text[64];
  std::snprintf(text, sizeof text, pattern, value);
  return text;
}

}  // namespace

double BenchResult::bandwidth_share() const {
  return decode_tokens_per_second * static_cast<double>(memory.weights_per_decode) / read_bytes_per_second;
}

double measure_read_bandwidth(int threads) {
  constexpr int64_t kWords = int64_t{1} << 26;  // 512 MiB: beyond any cache
  const std::vector<uint64_t> words(static_cast<size_t>(kWords), 1);
  ThreadPool pool(threads);
  constexpr int64_t kTaskWords = int64_t{1} << 18;
  std::vector<uint64_t> sums(static_cast<size_t>(kWords / kTaskWords));
  double best = 0;
  for (int pass = 0; pass < 4; ++pass) {
    const Stopwatch stopwatch;
    pool.parallel_for(kWords / kTaskWords, [&](int64_t task, int) {
      uint64_t lanes[16] = {};  // side by side, so that additions do not wait for each other
      const uint64_t* data = words.data() + task * kTaskWords;
      for (int64_t i = 0; i < kTaskWords; i += 16) {
        for (int64_t j = 0; j < 16; ++j) lanes[j] += data[i + j];
      }
      for (const uint64_t lane : lanes) sums[static_cast<size_t>(task)] += lane;
    });
    best = std::max(best, static_cast<double>(kWords * 8) / stopwatch.seconds());
  }
  if (sums.front() == 0) throw Error(ErrorKind::internal, "the bandwidth test lost its sums");
  return best;
}

BenchResult run_bench(Model& model, const BenchOptions& options) {
  const std::vector<int32_t> prompt = arbitrary_tokens(options.prompt_tokens, model.vocab_size());
  const std::unique_ptr<SequenceState> state = model.new_sequence();
  const auto pause = [&] {
    if (options.between_passes) options.between_passes();
  };
  std::vector<double> prefill, decode, verify;
  for (int repetition = 0; repetition < options.repetitions + 1; ++repetition) {  // the first one warms up
    state->clear();
    const Stopwatch prefill_time;
    HiddenRows hidden = model.prefill(*state, prompt, [&](int64_t, HiddenRows) {
      pause();
      return true;
    });
    prefill.push_back(static_cast<double>(options.prompt_tokens) / prefill_time.seconds());

    const Stopwatch decode_time;
    for (int64_t i = 0; i < options.generated_tokens; ++i) {
      pause();
      hidden = model.decode(*state, model.argmax(hidden));
    }
    decode.push_back(static_cast<double>(options.generated_tokens) / decode_time.seconds());

    const std::vector<int32_t> rows = arbitrary_tokens(options.verified_rows, model.vocab_size());
    const int64_t passes = std::max<int64_t>(1, options.generated_tokens / options.verified_rows);
    const Stopwatch verify_time;
    for (int64_t i = 0; i < passes; ++i) {
      pause();
      model.argmax(model.decode(*state, rows));
      model.rollback(*state, 1);
    }
    verify.push_back(static_cast<double>(passes * options.verified_rows) / verify_time.seconds());
  }
  for (std::vector<double>* values : {&prefill, &decode, &verify}) values->erase(values->begin());

  BenchResult result;
  result.prefill_tokens_per_second = median(prefill);
  result.decode_tokens_per_second = median(decode);
  result.verify_rows_per_second = median(verify);
  result.threads = model.threads();
  result.memory = model.memory();
  result.read_bytes_per_second = measure_read_bandwidth(result.threads);
  return result;
}

std::string bench_text(const BenchOptions& options, const BenchResult& result, bool as_json) {
  const ModelMemory& memory = result.memory;
  if (as_json) {
    nlohmann::ordered_json json;
    json["schema_version"] = 1;
    json["prompt_tokens"] = options.prompt_tokens;
    json["generated_tokens"] = options.generated_tokens;
    json["verified_rows"] = options.verified_rows;
    json["threads"] = result.threads;
    json["load_seconds"] = result.load_seconds;
    json["prefill_tokens_per_second"] = result.prefill_tokens_per_second;
    json["decode_tokens_per_second"] = result.decode_tokens_per_second;
    json["verify_rows_per_second"] = result.verify_rows_per_second;
    json["weight_bytes_per_token"] = memory.weights_per_decode;
    json["machine_read_bytes_per_second"] = result.read_bytes_per_second;
    json["bandwidth_share"] = result.bandwidth_share();
    json["memory"] = {{"weights_mapped", memory.weights_mapped},
                      {"weights_copied", memory.weights_copied},
                      {"workspace", memory.workspace},
                      {"state_per_sequence", memory.state_per_sequence},
                      {"kv_per_token", memory.kv_per_token}};
    return json.dump(2) + "\n";
  }
  std::string text;
  text += "load      " + format("%.2f s", result.load_seconds) + "\n";
  text += "prefill   " + format("%.1f tok/s", result.prefill_tokens_per_second) + "  (" +
          std::to_string(options.prompt_tokens) + " tokens)\n";
  text += "decode    " + format("%.1f tok/s", result.decode_tokens_per_second) + "  (" +
          std::to_string(options.generated_tokens) + " tokens, one at a time, " + std::to_string(result.threads) +
          " threads)\n";
  text += "verify    " + format("%.1f rows/s", result.verify_rows_per_second) + "  (" +
          std::to_string(options.verified_rows) + " rows a pass)\n";
  const double weight_rate = result.decode_tokens_per_second * static_cast<double>(memory.weights_per_decode);
  text += "weights   " + format_bytes(memory.weights_per_decode) + " a token, read at " + format_rate(weight_rate) +
          ": " + format("%.1f %%", 100 * result.bandwidth_share()) + " of the " +
          format_rate(result.read_bytes_per_second) + " this machine reads\n";
  text += "memory    weights " + format_bytes(memory.weights_mapped + memory.weights_copied) + " (" +
          format_bytes(memory.weights_copied) + " copied), workspace " + format_bytes(memory.workspace) +
          ", a sequence " + format_bytes(memory.state_per_sequence) + " and " + format_bytes(memory.kv_per_token) +
          " a token\n";
  return text;
}

}  // namespace tandem
