// The operations around the linears at the full size of Ling-3.1-flash: checked against the references first, then
// timed. One thread: what a core does.
//
//   bench_ops [--target NAME] [--quick]
//
// `GB/s` counts each byte that the operation must read or write once; `share` is that rate against the rate at which
// one thread can read memory at all. Working sets that a decoding step would find in memory rotate through copies that
// do not fit the second-level cache; activations stay in the cache, as they would.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/bench/bench_common.h"
#include "kernels/embedding.h"
#include "kernels/kda_chunked.h"
#include "kernels/kda_gate.h"
#include "kernels/l2_norm.h"
#include "kernels/logits.h"
#include "kernels/mla_decode.h"
#include "kernels/mla_prefill.h"
#include "kernels/moe.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/router.h"
#include "kernels/short_conv.h"
#include "kernels/swiglu.h"

namespace tandem {
namespace {

using bench::number;
using Floats = std::vector<float>;

constexpr int64_t kHidden = 4096;
constexpr int64_t kHeads = 64;
constexpr int64_t kHeadDim = 128;
constexpr int64_t kWidth = kHeads * kHeadDim;
constexpr int64_t kLatent = 512;
constexpr int64_t kRope = 64;
constexpr int64_t kExperts = 512;
constexpr int64_t kChosen = 8;
constexpr int64_t kVocab = 157184;

std::mt19937_64 random_bits(1);

Floats normal(int64_t count, float scale = 1.0f) {
  std::normal_distribution<float> distribution(0.0f, scale);
  Floats values(static_cast<size_t>(count));
  for (float& v : values) v = distribution(random_bits);
  return values;
}

std::vector<uint16_t> bf16(int64_t count, float scale) {
  std::vector<uint16_t> bits;
  for (const float v : normal(count, scale)) bits.push_back(float_to_bf16(v));
  return bits;
}

class Bench {
 public:
  explicit Bench(bool quick)
      : seconds_(quick ? 0.02 : 0.4),
        bandwidth_(bench::read_bandwidth()),
        table_({"operation         ", "shape                     ", "us      ", "GB/s  ", "share ", "GFLOP/s"}) {}

  /// Runs both forms, compares `out`, then times the fast one.
  template <typename Args>
  void operation(const char* name, const std::string& shape, double bytes, double flops, void (*fast)(const Args&),
                 void (*reference)(const Args&), const Args& args, Floats& out, double tolerance) {
    check(
        name, [&] { fast(args); }, [&] { reference(args); }, out, tolerance);
    time(name, shape, bytes, flops, [&] { fast(args); });
  }

  void check(const std::string& name, const std::function<void()>& fast, const std::function<void()>& reference,
             Floats& out, double tolerance) {
    reference();
    const Floats expected = out;
    std::fill(out.begin(), out.end(), std::nanf(""));
    fast();
    double difference = 0.0;
    double norm = 0.0;
    for (size_t i = 0; i < out.size(); ++i) {
      difference += std::pow(double{out[i]} - expected[i], 2);
      norm += std::pow(double{expected[i]}, 2);
    }
    const double error = std::sqrt(difference / norm);
    if (!(error <= tolerance)) bench::fail(name + ": relative error " + std::to_string(error));
  }

  void time(const std::string& name, const std::string& shape, double bytes, double flops,
            const std::function<void()>& run) {
    const double seconds = bench::best_seconds(run, seconds_);
    table_.row({name, shape, number(seconds * 1e6, 1), number(bytes / seconds * 1e-9, 1),
                number(100 * bytes / seconds / bandwidth_, 0) + " %",
                flops > 0 ? number(flops / seconds * 1e-9, 1) : ""});
  }

 private:
  double seconds_;
  double bandwidth_;
  bench::Table table_;
};

void norms(Bench& bench) {
  const Floats x = normal(kWidth);
  const Floats delta = normal(kWidth);
  const Floats weight = normal(kWidth);
  Floats sum(kWidth);
  Floats y(kHidden);
  bench.operation("rms_norm, residual", "1 x 4096", 5.0 * 4 * kHidden, 0, rms_norm, rms_norm_reference,
                  RmsNormArgs{.rows = 1,
                              .width = kHidden,
                              .x = x.data(),
                              .weight = weight.data(),
                              .delta = delta.data(),
                              .sum = sum.data(),
                              .y = y.data()},
                  y, 1e-6);
  y.resize(kWidth);
  bench.operation("gated_rms_norm", "1 x 64 x 128", 3.0 * 4 * kWidth, 0, gated_rms_norm, gated_rms_norm_reference,
                  GatedRmsNormArgs{.rows = 1,
                                   .heads = kHeads,
                                   .width = kHeadDim,
                                   .x = x.data(),
                                   .weight = weight.data(),
                                   .gate = delta.data(),
                                   .y = y.data()},
                  y, 1e-6);
  bench.operation("l2_norm", "1 x 64 x 128", 2.0 * 4 * kWidth, 0, l2_norm, l2_norm_reference,
                  L2NormArgs{.rows = 1, .heads = kHeads, .width = kHeadDim, .x = x.data(), .y = y.data()}, y, 1e-6);
}

void positions(Bench& bench) {
  const RopeTable table = build_rope_table({.rope_dim = kRope, .theta = 6e6});
  const int64_t position = 200000;
  const Floats x = normal(kHeads * kRope);
  Floats y(kHeads * kRope);
  bench.operation(
      "rope", "1 x 64 x 64", 2.0 * 4 * kHeads * kRope, 0, rope, rope_reference,
      RopeArgs{.rows = 1, .heads = kHeads, .table = &table, .positions = &position, .x = x.data(), .y = y.data()}, y,
      1e-6);
}

void kda_inputs(Bench& bench) {
  const Floats x = normal(3 * kWidth);
  const Floats weight = normal(4 * 3 * kWidth);
  const Floats history = normal(3 * 3 * kWidth);
  Floats next(history.size());
  Floats y(3 * kWidth);
  bench.operation("short_conv", "1 x 24576, 4 taps", 12.0 * 4 * 3 * kWidth, 0, short_conv, short_conv_reference,
                  ShortConvArgs{.rows = 1,
                                .channels = 3 * kWidth,
                                .x = x.data(),
                                .weight = weight.data(),
                                .history = history.data(),
                                .y = y.data(),
                                .next_history = next.data()},
                  y, 1e-6);
  const Floats a_log = normal(kHeads);
  Floats beta(kHeads);
  y.resize(kWidth);
  bench.operation("kda_gate", "1 x 64 x 128", 3.0 * 4 * kWidth, 0, kda_gate, kda_gate_reference,
                  KdaGateArgs{.rows = 1,
                              .heads = kHeads,
                              .head_dim = kHeadDim,
                              .a_log = a_log.data(),
                              .dt_bias = weight.data(),
                              .f = x.data(),
                              .beta_logits = history.data(),
                              .g = y.data(),
                              .beta = beta.data()},
                  y, 1e-6);
}

/// Rows of a KDA layer: normalized queries and keys, decays and step sizes in their ranges.
struct KdaInputs {
  Floats q, k, v, g, beta;

  explicit KdaInputs(int64_t rows) : q(normal(rows * kWidth)), k(normal(rows * kWidth)), v(normal(rows * kWidth)) {
    l2_norm({.rows = rows, .heads = kHeads, .width = kHeadDim, .scale = 0.088f, .x = q.data(), .y = q.data()});
    l2_norm({.rows = rows, .heads = kHeads, .width = kHeadDim, .x = k.data(), .y = k.data()});
    for (const float x : normal(rows * kWidth)) g.push_back(-5.0f / (1.0f + std::exp(-x)));
    for (const float x : normal(rows * kHeads)) beta.push_back(1.0f / (1.0f + std::exp(-x)));
  }

  KdaRows rows(int64_t count) const {
    return {.rows = count, .k = k.data(), .v = v.data(), .g = g.data(), .beta = beta.data(), .beta_stride = kHeads};
  }
};

void kda(Bench& bench) {
  constexpr int64_t kState = kHeads * kHeadDim * kHeadDim;
  constexpr int64_t kLayers = 8;
  constexpr int64_t kPrompt = 256;
  const KdaInputs inputs(kPrompt);
  const Floats start = normal(kState, 0.1f);
  Floats states;
  for (int64_t layer = 0; layer < kLayers; ++layer) states.insert(states.end(), start.begin(), start.end());
  Floats o(kPrompt * kWidth);
  for (const int64_t rows : {1, 4}) {
    KdaStepArgs args{.heads = kHeads,
                     .key_dim = kHeadDim,
                     .value_dim = kHeadDim,
                     .rows = inputs.rows(rows),
                     .q = inputs.q.data(),
                     .o = o.data(),
                     .state = states.data()};
    Floats out(rows * kWidth);
    const auto on_fresh_state = [&](void (*operation)(const KdaStepArgs&)) {
      std::copy(start.begin(), start.end(), states.begin());
      KdaStepArgs fresh = args;
      fresh.o = out.data();
      operation(fresh);
    };
    bench.check(
        "kda_step", [&] { on_fresh_state(kda_step); }, [&] { on_fresh_state(kda_step_reference); }, out, 1e-5);
    int64_t layer = 0;
    const double bytes = 2.0 * 4 * kState + rows * 5.0 * 4 * kWidth;
    bench.time("kda_step", std::to_string(rows) + " x 64 x 128 x 128", bytes, rows * 8.0 * kState, [&] {
      args.state = states.data() + layer++ % kLayers * kState;
      kda_step(args);
    });
  }
  KdaChunkedArgs args{.heads = kHeads,
                      .key_dim = kHeadDim,
                      .value_dim = kHeadDim,
                      .rows = inputs.rows(kPrompt),
                      .q = inputs.q.data(),
                      .q_stride = kWidth,
                      .o = o.data(),
                      .o_stride = kWidth,
                      .state = states.data()};
  args.rows.k_stride = args.rows.v_stride = args.rows.g_stride = kWidth;
  Floats workspace(kda_chunked_workspace(args));
  args.workspace = workspace.data();
  Floats out(kPrompt * kWidth);
  const auto two_heads = [&](void (*operation)(const KdaChunkedArgs&)) {  // the reference is slow
    std::copy(start.begin(), start.end(), states.begin());
    KdaChunkedArgs few = args;
    few.heads = 2;
    few.o = out.data();
    few.o_stride = 0;
    operation(few);
  };
  out.resize(kPrompt * 2 * kHeadDim);
  bench.check(
      "kda_chunked", [&] { two_heads(kda_chunked); }, [&] { two_heads(kda_chunked_reference); }, out, 1e-6);
  bench.time("kda_chunked", "256 x 64 x 128 x 128", 2.0 * 4 * kState + kPrompt * 5.0 * 4 * kWidth,
             kPrompt * 8.0 * kState, [&] { kda_chunked(args); });
}

void mla(Bench& bench) {
  constexpr int64_t kContext = 4096;
  constexpr int64_t kQuery = kHeadDim + kRope;
  const std::vector<uint16_t> latents = bf16(kContext * kLatent, 1.0f);
  const std::vector<uint16_t> rope_keys = bf16(kContext * kRope, 1.0f);
  const std::vector<uint16_t> weights = bf16(kHeads * 2 * kHeadDim * kLatent, 0.05f);
  const Floats q = normal(256 * kHeads * kQuery);
  const Floats gate = normal(256 * kHeads);
  MlaArgs args{.rows = 1,
               .heads = kHeads,
               .nope_dim = kHeadDim,
               .rope_dim = kRope,
               .latent_dim = kLatent,
               .value_dim = kHeadDim,
               .first_position = kContext - 8,
               .scale = 0.0722f,
               .q = q.data(),
               .cache = {FloatFormat::bf16, latents.data(), 0, rope_keys.data(), 0},
               .kv_b = {FloatFormat::bf16, weights.data()},
               .gate_kind = MlaGate::head_wise,
               .gate = gate.data()};
  Floats workspace(std::max(mla_decode_workspace(args), mla_prefill_workspace(args)));
  args.workspace = workspace.data();
  const double weight_bytes = 2.0 * kHeads * 2 * kHeadDim * kLatent;
  const double cache_bytes = 2.0 * kContext * (kLatent + kRope);
  for (const int64_t rows : {1, 4}) {
    args.rows = rows;
    Floats o(rows * kWidth);
    args.o = o.data();
    bench.operation("mla_decode", std::to_string(rows) + " row(s), 4096 positions", weight_bytes + cache_bytes,
                    2.0 * rows * kHeads * (2.0 * kHeadDim * kLatent + kContext * (2.0 * kLatent + kRope)), mla_decode,
                    mla_decode_reference, args, o, 1e-5);
  }
  for (const int64_t first : {int64_t{0}, kContext - 256}) {
    args.rows = 256;
    args.first_position = first;
    Floats o(args.rows * kWidth);
    const double keys = static_cast<double>(first) + 256;
    const double pairs = 256.0 * static_cast<double>(first) + 256 * 257 / 2;
    args.o = o.data();
    Floats few(32 * 2 * kHeadDim);
    const auto two_heads = [&](void (*operation)(const MlaArgs&)) {  // the reference is slow
      MlaArgs small = args;
      small.rows = 32;
      small.heads = 2;
      small.o = few.data();
      operation(small);
    };
    if (first == 0)
      bench.check(
          "mla_prefill", [&] { two_heads(mla_prefill); }, [&] { two_heads(mla_prefill_reference); }, few, 1e-5);
    bench.time("mla_prefill", "256 rows from " + std::to_string(first), weight_bytes + 2.0 * keys * (kLatent + kRope),
               2.0 * kHeads * (keys * 2 * kHeadDim * kLatent + pairs * (kQuery + kHeadDim)),
               [&] { mla_prefill(args); });
  }
}

void experts(Bench& bench) {
  constexpr int64_t kLayers = 4;
  constexpr int64_t kExpertWidth = 1280;
  const std::vector<uint16_t> weight = bf16(kLayers * kExperts * kHidden, 0.02f);
  const Floats x = normal(64 * kHidden);
  const Floats bias = normal(kExperts, 0.01f);
  for (const int64_t rows : {1, 64}) {
    Floats weights(rows * kChosen);
    std::vector<int32_t> chosen(rows * kChosen);
    RouterArgs args{.rows = rows,
                    .hidden_size = kHidden,
                    .num_experts = kExperts,
                    .num_groups = 8,
                    .num_groups_chosen = 4,
                    .num_experts_chosen = kChosen,
                    .scaling = 2.5f,
                    .x = x.data(),
                    .weight_format = FloatFormat::bf16,
                    .weight = weight.data(),
                    .bias = bias.data(),
                    .experts = chosen.data(),
                    .weights = weights.data()};
    Floats workspace(router_workspace(args));
    args.workspace = workspace.data();
    bench.check(
        "router", [&] { router(args); }, [&] { router_reference(args); }, weights, 1e-5);
    int64_t layer = 0;
    bench.time("router", std::to_string(rows) + " x 4096 to 512, bf16", 2.0 * kExperts * kHidden,
               2.0 * rows * kExperts * kHidden, [&] {
                 args.weight = weight.data() + layer++ % kLayers * kExperts * kHidden;
                 router(args);
               });
  }
  const Floats gate = normal(kChosen * kHidden);
  const Floats up = normal(kChosen * kHidden);
  Floats y(kChosen * kExpertWidth);
  bench.operation(
      "swiglu", "8 x 1280, limit", 3.0 * 4 * kChosen * kExpertWidth, 0, swiglu, swiglu_reference,
      SwigluArgs{
          .rows = kChosen, .width = kExpertWidth, .limit = 10.0f, .gate = gate.data(), .up = up.data(), .y = y.data()},
      y, 1e-6);
  y.resize(kHidden);
  bench.operation("moe_combine", "1 x 4096, 8 and shared", 10.0 * 4 * kHidden, 0, moe_combine, moe_combine_reference,
                  MoeCombineArgs{.rows = 1,
                                 .width = kHidden,
                                 .num_experts_chosen = kChosen,
                                 .expert_outputs = gate.data(),
                                 .weights = bias.data(),
                                 .shared = up.data(),
                                 .y = y.data()},
                  y, 1e-5);
}

void vocabulary(Bench& bench) {
  constexpr int64_t kRows = 1000;
  const std::vector<uint16_t> table = bf16(kRows * kHidden, 1.0f);
  int32_t token = 0;
  Floats y(kHidden);
  EmbeddingArgs args{.rows = 1,
                     .hidden_size = kHidden,
                     .vocab_size = kRows,
                     .table_rows = kRows,
                     .table = table.data(),
                     .tokens = &token,
                     .y = y.data()};
  bench.check(
      "embedding", [&] { embedding(args); }, [&] { embedding_reference(args); }, y, 0.0);
  bench.time("embedding", "1 x 4096, bf16", 6.0 * kHidden, 0, [&] {
    token = (token + 37) % kRows;
    embedding(args);
  });
  const Floats logits = normal(kVocab, 3.0f);
  const LogitRows x{.rows = 1, .vocab_size = kVocab, .logits = logits.data()};
  Floats value(1);
  bench.check(
      "argmax", [&] { argmax(x, &token, value.data()); }, [&] { argmax_reference(x, &token, value.data()); }, value,
      0.0);
  bench.time("argmax", "1 x 157184", 4.0 * kVocab, 0, [&] { argmax(x, &token, value.data()); });
  Floats probabilities(kVocab);
  bench.check(
      "log_softmax", [&] { log_softmax(x, probabilities.data()); },
      [&] { log_softmax_reference(x, probabilities.data()); }, probabilities, 1e-6);
  bench.time("log_softmax", "1 x 157184", 8.0 * kVocab, 0, [&] { log_softmax(x, probabilities.data()); });
  Floats best(8);
  std::vector<int32_t> tokens(8);
  bench.check(
      "top_logits", [&] { top_logits(x, 8, tokens.data(), best.data()); },
      [&] { top_logits_reference(x, 8, tokens.data(), best.data()); }, best, 0.0);
  bench.time("top_logits", "1 x 157184, best 8", 4.0 * kVocab, 0,
             [&] { top_logits(x, 8, tokens.data(), best.data()); });
}

int run(int argc, char** argv) {
  bool quick = false;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--quick") {
      quick = true;
    } else if (flag == "--target" && i + 1 < argc) {
      if (!bench::use_instruction_set(argv[++i]))
        bench::fail("this machine has no instruction set " + std::string(argv[i]));
    } else {
      bench::fail("unknown flag " + flag + ", expected --target NAME or --quick");
    }
  }
  std::printf("instruction set %s, one thread; memory reads %.1f GB/s\n", bench::instruction_set().c_str(),
              bench::read_bandwidth() * 1e-9);
  Bench bench(quick);
  norms(bench);
  positions(bench);
  kda_inputs(bench);
  kda(bench);
  mla(bench);
  experts(bench);
  vocabulary(bench);
  return 0;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  return tandem::run(argc, argv);
}
