#include <algorithm>
#include <limits>
#include <numeric>

#include "kernels/embedding.h"
#include "kernels/kda_gate.h"
#include "kernels/l2_norm.h"
#include "kernels/moe.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/short_conv.h"
#include "kernels/swiglu.h"
#include "runtime/common/error.h"
#include "tests/kernels/ops_fixture.h"

namespace tandem {
namespace {

// Widths with odd tails for every vector length, and the model's own.
int64_t some_width(Random& random) {
  constexpr int64_t kWidths[] = {1, 3, 17, 65, 128, 250, 1030};
  return kWidths[random.integer(0, 6)];
}

TEST_CASE("rms_norm agrees with its fp64 form and adds the residual first", "[ops]") {
  for_seeds_and_targets([](uint64_t seed) {
    Random random(seed);
    const int64_t rows = random.integer(1, 5);
    const int64_t width = some_width(random);
    const Floats x = random.normal(rows * (width + 3), 2.0f);
    const Floats delta = random.normal(rows * width);
    const Floats weight = random.uniform(width, 0.5f, 1.5f);
    Floats sum(rows * width);
    Floats y(rows * width);
    RmsNormArgs args{
        .rows = rows, .width = width, .x = x.data(), .x_stride = width + 3, .weight = weight.data(), .y = y.data()};
    Floats expected(rows * width);
    rms_norm(args);
    args.y = expected.data();
    rms_norm_reference(args);
    check_close(y, expected, tolerance::kNorm);

    args.delta = delta.data();
    args.sum = sum.data();
    rms_norm_reference(args);
    const Floats expected_sum = sum;
    std::fill(sum.begin(), sum.end(), 0.0f);
    args.y = y.data();
    rms_norm(args);
    CHECK(same_bits(sum, expected_sum));
    check_close(y, expected, tolerance::kNorm);
  });
}

TEST_CASE("a row's norms have the same bits alone, among others and on several threads", "[ops]") {
  ThreadPool pool(3);
  for_seeds_and_targets([&](uint64_t seed) {
    Random random(seed);
    const int64_t rows = 9;
    const int64_t heads = 6;
    const int64_t width = 200;
    const int64_t row = heads * width;
    const Floats x = random.normal(rows * row);
    const Floats gate = random.normal(rows * row, 3.0f);
    const Floats weight = random.normal(row);
    Floats all(rows * row);
    Floats one(row);
    rms_norm({.rows = rows, .width = row, .x = x.data(), .weight = weight.data(), .y = all.data(), .pool = &pool});
    for (int64_t r = 0; r < rows; ++r) {
      rms_norm({.rows = 1, .width = row, .x = &x[r * row], .weight = weight.data(), .y = one.data()});
      CHECK(same_bits(one.data(), &all[r * row], row));
    }
    GatedRmsNormArgs gated{.rows = rows,
                           .heads = heads,
                           .width = width,
                           .x = x.data(),
                           .weight = weight.data(),
                           .gate = gate.data(),
                           .y = all.data(),
                           .pool = &pool};
    gated_rms_norm(gated);
    gated.rows = 1;
    gated.pool = nullptr;
    gated.y = one.data();
    for (int64_t r = 0; r < rows; ++r) {
      gated.x = &x[r * row];
      gated.gate = &gate[r * row];
      gated_rms_norm(gated);
      CHECK(same_bits(one.data(), &all[r * row], row));
    }
  });
}

TEST_CASE("gated_rms_norm and l2_norm agree with their fp64 forms, also in place", "[ops]") {
  for_seeds_and_targets([](uint64_t seed) {
    Random random(seed);
    const int64_t rows = random.integer(1, 4);
    const int64_t heads = random.integer(1, 4);
    const int64_t width = some_width(random);
    const int64_t count = rows * heads * width;
    Floats x = random.normal(count);
    const Floats gate = random.normal(count, 4.0f);
    const Floats weight = random.uniform(width, 0.5f, 1.5f);
    Floats expected(count);
    Floats y(count);
    GatedRmsNormArgs gated{.rows = rows,
                           .heads = heads,
                           .width = width,
                           .x = x.data(),
                           .weight = weight.data(),
                           .gate = gate.data(),
                           .y = expected.data()};
    gated_rms_norm_reference(gated);
    gated.y = y.data();
    gated_rms_norm(gated);
    check_close(y, expected, tolerance::kNorm);

    L2NormArgs l2{.rows = rows, .heads = heads, .width = width, .scale = 0.088f, .x = x.data(), .y = expected.data()};
    l2_norm_reference(l2);
    l2.y = x.data();
    l2_norm(l2);
    check_close(x, expected, tolerance::kNorm);
  });
}

TEST_CASE("rope turns neighbours by fp64 angles at any position, with strides", "[ops]") {
  for_seeds_and_targets([](uint64_t seed) {
    Random random(seed);
    const int64_t rows = 3;
    const int64_t heads = random.integer(1, 5);
    const RopeTable table = build_rope_table({.rope_dim = 2 * random.integer(1, 70), .theta = 6e6});
    const int64_t dim = table.rope_dim();
    const int64_t positions[rows] = {0, 1048575, random.integer(0, 1 << 20)};
    const Floats x = random.normal(rows * heads * (dim + 5));
    Floats expected(rows * heads * dim);
    Floats y(expected.size());
    RopeArgs args{.rows = rows,
                  .heads = heads,
                  .table = &table,
                  .positions = positions,
                  .x = x.data(),
                  .x_row_stride = heads * (dim + 5),
                  .x_head_stride = dim + 5,
                  .y = expected.data()};
    rope_reference(args);
    args.y = y.data();
    rope(args);
    check_close(y, expected, tolerance::kRope);
    for (int64_t h = 0; h < heads; ++h) CHECK(same_bits(&y[h * dim], &x[h * (dim + 5)], dim));  // position 0
    Floats one(heads * dim);
    args.y = one.data();
    args.rows = 1;
    for (int64_t r = 0; r < rows; ++r) {
      args.positions = positions + r;
      args.x = &x[r * heads * (dim + 5)];
      rope(args);
      CHECK(same_bits(one.data(), &y[r * heads * dim], heads * dim));
    }
  });
}

TEST_CASE("short_conv carries its history from call to call", "[ops]") {
  ThreadPool pool(3);
  for_seeds_and_targets([&](uint64_t seed) {
    Random random(seed);
    const int64_t rows = 11;
    const int64_t channels = some_width(random) + 300;
    const int64_t taps = random.integer(2, 8);
    const Floats x = random.normal(rows * channels);
    const Floats stored = random.normal(channels * taps);
    const Floats before = random.normal((taps - 1) * channels);
    Floats weight(stored.size());
    short_conv_weight_by_tap(stored.data(), channels, taps, weight.data());
    CHECK(weight[(taps - 1) * channels + 5] == stored[5 * taps + taps - 1]);

    Floats expected(rows * channels);
    Floats y(rows * channels);
    Floats expected_history(before.size());
    Floats history(before.size());
    ShortConvArgs args{.rows = rows,
                       .channels = channels,
                       .taps = taps,
                       .x = x.data(),
                       .weight = weight.data(),
                       .history = before.data(),
                       .y = expected.data(),
                       .next_history = expected_history.data()};
    short_conv_reference(args);
    args.y = y.data();
    args.next_history = history.data();
    args.pool = &pool;
    short_conv(args);
    check_close(y, expected, tolerance::kShortConv);
    CHECK(same_bits(history, expected_history));

    // The same rows in calls of 1, 2, 3 ... rows, history in place.
    Floats pieces(rows * channels);
    history = before;
    args.pool = nullptr;
    args.history = history.data();
    args.next_history = history.data();
    for (int64_t first = 0, n = 1; first < rows; first += n, ++n) {
      args.rows = std::min(n, rows - first);
      args.x = &x[first * channels];
      args.y = &pieces[first * channels];
      short_conv(args);
    }
    CHECK(same_bits(pieces, y));
    CHECK(same_bits(history, expected_history));

    // Rollback: the history after some rows alone.
    for (int64_t kept = 0; kept <= rows; ++kept) {
      Floats advanced(before.size());
      args.history = before.data();
      args.next_history = advanced.data();
      args.rows = kept;
      args.x = x.data();
      args.y = pieces.data();
      short_conv(args);
      Floats rolled = before;
      short_conv_advance(rolled.data(), x.data(), 0, kept, channels, taps, rolled.data());
      CHECK(same_bits(rolled, advanced));
    }
  });
}

TEST_CASE("kda_gate computes both gates over the whole range of their inputs", "[ops]") {
  for_seeds_and_targets([](uint64_t seed) {
    Random random(seed);
    const int64_t rows = 3;
    const int64_t heads = random.integer(1, 5);
    const int64_t dim = some_width(random);
    const Floats a_log = random.normal(heads);
    const Floats bias = random.normal(heads * dim);
    const Floats f = random.uniform(rows * heads * dim, -40.0f, 40.0f);
    const Floats logits = random.uniform(rows * heads, -120.0f, 120.0f);
    for (const bool bounded : {true, false}) {
      Floats expected(f.size());
      Floats expected_beta(logits.size());
      Floats g(f.size());
      Floats beta(logits.size());
      KdaGateArgs args{.rows = rows,
                       .heads = heads,
                       .head_dim = dim,
                       .bounded = bounded,
                       .a_log = a_log.data(),
                       .dt_bias = bias.data(),
                       .f = f.data(),
                       .beta_logits = logits.data(),
                       .g = expected.data(),
                       .beta = expected_beta.data()};
      kda_gate_reference(args);
      args.g = g.data();
      args.beta = beta.data();
      kda_gate(args);
      check_close(g, expected, tolerance::kGate);
      check_close(beta, expected_beta, tolerance::kGate);
      for (const float v : g) CHECK((v <= 0.0f && (!bounded || v >= -5.0f)));
      // Small sigmoids are exact in relative terms too.
      for (size_t i = 0; i < beta.size(); ++i) {
        if (expected_beta[i] > 1e-35f) CHECK(beta[i] == Approx(expected_beta[i]).epsilon(4e-6));
      }
    }
  });
}

TEST_CASE("swiglu clamps after SiLU on the gate's upper side and both sides of up", "[ops]") {
  for_seeds_and_targets([](uint64_t seed) {
    Random random(seed);
    const int64_t rows = random.integer(1, 3);
    const int64_t width = some_width(random) + 1000;
    const Floats gate = random.normal(rows * width, 8.0f);
    const Floats up = random.normal(rows * width, 8.0f);
    for (const float limit : {0.0f, 10.0f, 0.5f}) {
      Floats expected(gate.size());
      Floats y(gate.size());
      SwigluArgs args{
          .rows = rows, .width = width, .limit = limit, .gate = gate.data(), .up = up.data(), .y = expected.data()};
      swiglu_reference(args);
      args.y = y.data();
      swiglu(args);
      check_close(y, expected, tolerance::kSwiglu);
    }
  });
  const Floats gate = {20.0f, -20.0f, 20.0f};
  const Floats up = {20.0f, 20.0f, -20.0f};
  Floats y(3);
  swiglu({.rows = 1, .width = 3, .limit = 10.0f, .gate = gate.data(), .up = up.data(), .y = y.data()});
  CHECK(y[0] == 100.0f);
  CHECK(y[1] == Approx(-20.0 / (1.0 + std::exp(20.0)) * 10.0));
  CHECK(y[2] == -100.0f);
}

TEST_CASE("moe_group sorts choices by expert and moe_combine undoes it", "[ops]") {
  for_seeds_and_targets([](uint64_t seed) {
    Random random(seed);
    const int64_t rows = random.integer(1, 9);
    const int64_t experts = 16;
    const int64_t chosen = random.integer(1, 4);
    const int64_t width = some_width(random) + 1000;
    std::vector<int32_t> choice;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < chosen; ++c) choice.push_back(static_cast<int32_t>(c * 4 + random.integer(0, 3)));
    }
    std::vector<int64_t> first(experts + 1);
    std::vector<int32_t> row_of_slot(rows * chosen);
    std::vector<int32_t> slot_of_pair(rows * chosen);
    moe_group({.rows = rows,
               .num_experts = experts,
               .num_experts_chosen = chosen,
               .experts = choice.data(),
               .first_slot = first.data(),
               .row_of_slot = row_of_slot.data(),
               .slot_of_pair = slot_of_pair.data()});
    CHECK(first[0] == 0);
    CHECK(first[experts] == rows * chosen);
    for (int64_t p = 0; p < rows * chosen; ++p) {
      CHECK(row_of_slot[slot_of_pair[p]] == p / chosen);
      CHECK(slot_of_pair[p] >= first[choice[p]]);
      CHECK(slot_of_pair[p] < first[choice[p] + 1]);
    }
    const Floats outputs = random.normal(rows * chosen * width);
    const Floats weights = random.uniform(rows * chosen, 0.0f, 1.0f);
    const Floats shared = random.normal(rows * width);
    for (const float* shared_or_none : {shared.data(), static_cast<const float*>(nullptr)}) {
      Floats expected(rows * width);
      Floats y(rows * width);
      Floats one(width);
      MoeCombineArgs args{.rows = rows,
                          .width = width,
                          .num_experts_chosen = chosen,
                          .expert_outputs = outputs.data(),
                          .slot_of_pair = slot_of_pair.data(),
                          .weights = weights.data(),
                          .shared = shared_or_none,
                          .y = expected.data()};
      moe_combine_reference(args);
      args.y = y.data();
      moe_combine(args);
      check_close(y, expected, tolerance::kCombine);
      args.rows = 1;
      args.y = one.data();
      for (int64_t r = 0; r < rows; ++r) {
        args.slot_of_pair = &slot_of_pair[r * chosen];
        args.weights = &weights[r * chosen];
        args.shared = shared_or_none == nullptr ? nullptr : &shared[r * width];
        moe_combine(args);
        CHECK(same_bits(one.data(), &y[r * width], width));
      }
    }
  });
  const int32_t bad = 16;
  int64_t first[17];
  int32_t slot;
  CHECK_THROWS_AS(moe_group({.rows = 1,
                             .num_experts = 16,
                             .num_experts_chosen = 1,
                             .experts = &bad,
                             .first_slot = first,
                             .row_of_slot = &slot,
                             .slot_of_pair = &slot}),
                  Error);
}

TEST_CASE("embedding converts every stored format exactly and gives zeros outside a rank's slice", "[ops]") {
  for_seeds_and_targets([](uint64_t seed) {
    Random random(seed);
    const int64_t width = some_width(random);
    const int64_t table_rows = 10;
    const Floats values = random.normal(table_rows * width);
    for (const FloatFormat format : {FloatFormat::fp32, FloatFormat::bf16, FloatFormat::fp16}) {
      const Stored table = store_as(format, values);
      const std::vector<int32_t> tokens = {5, 14, 0, 15, 4, 19};
      Floats y(tokens.size() * width, -1.0f);
      EmbeddingArgs args{.rows = static_cast<int64_t>(tokens.size()),
                         .hidden_size = width,
                         .vocab_size = 20,
                         .first_token = 5,
                         .table_rows = table_rows,
                         .format = format,
                         .table = table.data(),
                         .tokens = tokens.data(),
                         .y = y.data()};
      embedding(args);
      for (size_t i = 0; i < tokens.size(); ++i) {
        for (int64_t c = 0; c < width; ++c) {
          const bool ours = tokens[i] >= 5 && tokens[i] < 15;
          REQUIRE(y[i * width + c] == (ours ? table.floats[(tokens[i] - 5) * width + c] : 0.0f));
        }
      }
      Floats expected(y.size());
      args.y = expected.data();
      embedding_reference(args);
      CHECK(same_bits(y, expected));
      for (const int32_t outside : {-1, 20}) {
        args.rows = 1;
        args.tokens = &outside;
        CHECK_THROWS_AS(embedding(args), Error);
      }
    }
  });
}

TEST_CASE("bf16 rounds to nearest even and keeps NaN; fp16 subnormals and infinities convert", "[ops]") {
  CHECK(float_to_bf16(1.0f) == 0x3F80);
  CHECK(float_to_bf16(1.00390625f) == 0x3F80);  // half way: even
  CHECK(float_to_bf16(1.01171875f) == 0x3F82);
  CHECK(float_to_bf16(std::numeric_limits<float>::max()) == 0x7F80);
  CHECK(std::isnan(bf16_to_float(float_to_bf16(std::numeric_limits<float>::signaling_NaN()))));
  CHECK(fp16_to_float(0x0001) == 0x1p-24f);
  CHECK(fp16_to_float(0x83FF) == -1023 * 0x1p-24f);
  CHECK(fp16_to_float(0x3C00) == 1.0f);
  CHECK(fp16_to_float(0x7BFF) == 65504.0f);
  CHECK(fp16_to_float(0xFC00) == -std::numeric_limits<float>::infinity());
  CHECK(std::isnan(fp16_to_float(0x7E00)));
}

}  // namespace
}  // namespace tandem
