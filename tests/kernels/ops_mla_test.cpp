#include <algorithm>
#include <limits>

#include "kernels/mla_decode.h"
#include "kernels/mla_prefill.h"
#include "runtime/common/error.h"
#include "tests/kernels/ops_fixture.h"

namespace tandem {
namespace {

using Operation = void (*)(const MlaArgs&);
using Workspace = int64_t (*)(const MlaArgs&);

struct Shape {
  int64_t heads;
  int64_t nope_dim;
  int64_t rope_dim;
  int64_t latent_dim;
  int64_t value_dim;
};

/// Queries for the last `rows` of `positions`, and the cache of all positions, with room after each row.
struct Case {
  MlaArgs args;
  Floats q, gate;
  Stored weights, latents, rope_keys;

  Case(Random& random, const Shape& s, int64_t positions, int64_t rows, FloatFormat cache, FloatFormat weight,
       MlaGate kind) {
    q = random.normal(rows * s.heads * (s.nope_dim + s.rope_dim), 1.5f);
    gate = random.normal(rows * s.heads * s.value_dim, 2.0f);
    weights = store_as(weight, random.normal(s.heads * (s.nope_dim + s.value_dim) * s.latent_dim, 0.1f));
    latents = store_as(cache, random.normal(positions * (s.latent_dim + 7)));
    rope_keys = store_as(cache, random.normal(positions * (s.rope_dim + 3)));
    args = {.rows = rows,
            .heads = s.heads,
            .nope_dim = s.nope_dim,
            .rope_dim = s.rope_dim,
            .latent_dim = s.latent_dim,
            .value_dim = s.value_dim,
            .first_position = positions - rows,
            .scale = 1.0f / std::sqrt(static_cast<float>(s.nope_dim + s.rope_dim)),
            .cache = {.format = cache, .latent_stride = s.latent_dim + 7, .rope_key_stride = s.rope_dim + 3},
            .kv_b = {.format = weight},
            .gate_kind = kind};
    args.q = q.data();
    args.gate = gate.data();
    args.cache.latent = latents.data();
    args.cache.rope_key = rope_keys.data();
    args.kv_b.data = weights.data();
  }

  int64_t row_width() const { return args.heads * args.value_dim; }

  /// Rows [first, first + rows) of the case in one call.
  Floats run(Operation operation, Workspace size, int64_t first, int64_t rows, ThreadPool* pool = nullptr) const {
    MlaArgs a = args;
    a.rows = rows;
    a.first_position += first;
    a.q += first * a.heads * (a.nope_dim + a.rope_dim);
    a.gate += first * (a.gate_kind == MlaGate::head_wise ? a.heads : row_width());
    a.pool = pool;
    Floats workspace(size(a), std::numeric_limits<float>::quiet_NaN());
    a.workspace = workspace.data();
    Floats o(rows * row_width(), std::numeric_limits<float>::quiet_NaN());
    a.o = o.data();
    operation(a);
    return o;
  }
};

int64_t no_workspace(const MlaArgs&) {
  return 0;
}

constexpr Shape kSmall = {.heads = 3, .nope_dim = 32, .rope_dim = 16, .latent_dim = 48, .value_dim = 16};
constexpr Shape kWide = {.heads = 9, .nope_dim = 48, .rope_dim = 16, .latent_dim = 80, .value_dim = 144};

TEST_CASE("absorbed and expanded MLA agree with fp64 and with each other", "[ops][mla]") {
  for_seeds_and_targets([](uint64_t seed) {
    Random random(seed);
    constexpr FloatFormat kWeights[] = {FloatFormat::fp32, FloatFormat::bf16, FloatFormat::fp16};
    constexpr MlaGate kGates[] = {MlaGate::none, MlaGate::head_wise, MlaGate::element_wise};
    const int64_t positions = random.integer(1, 200);
    const int64_t rows = std::min<int64_t>(random.integer(1, 11), positions);
    const Case c(random, seed % 2 == 0 ? kSmall : kWide, positions, rows,
                 seed % 2 == 0 ? FloatFormat::fp32 : FloatFormat::bf16, kWeights[seed % 3], kGates[seed / 2]);
    const Floats expected = c.run(mla_decode_reference, no_workspace, 0, rows);
    check_close(c.run(mla_prefill_reference, no_workspace, 0, rows), expected, 1e-6);
    check_close(c.run(mla_decode, mla_decode_workspace, 0, rows), expected, tolerance::kMla);
    check_close(c.run(mla_prefill, mla_prefill_workspace, 0, rows), expected, tolerance::kMla);
  });
}

TEST_CASE("a decoded row has the same bits alone and among up to 8 others, across blocks and segments", "[ops][mla]") {
  ThreadPool pool(3);
  for_seeds_and_targets([&](uint64_t seed) {
    Random random(seed);
    const Shape shape{.heads = 2, .nope_dim = 16, .rope_dim = 16, .latent_dim = 32, .value_dim = 16};
    // The rows straddle a block's border, the first segment's and the second's.
    const int64_t positions[] = {7, 67, 2050, 2052, 4099};
    const Case c(random, shape, positions[seed - 1], std::min<int64_t>(positions[seed - 1], 8), FloatFormat::bf16,
                 FloatFormat::bf16, MlaGate::head_wise);
    const int64_t rows = c.args.rows;
    Floats serial;
    for (int64_t r = 0; r < rows; ++r) {
      const Floats one = c.run(mla_decode, mla_decode_workspace, r, 1);
      serial.insert(serial.end(), one.begin(), one.end());
    }
    for (int64_t n = 1; n <= rows; ++n) {
      CHECK(same_bits(c.run(mla_decode, mla_decode_workspace, 0, n, n % 2 == 0 ? &pool : nullptr).data(), serial.data(),
                      n * c.row_width()));
    }
    check_close(serial, c.run(mla_decode_reference, no_workspace, 0, rows), tolerance::kMla);
  });
}

TEST_CASE("more rows than one pass takes decode alike", "[ops][mla]") {
  Random random(11);
  const Case c(random, kSmall, 90, 21, FloatFormat::fp32, FloatFormat::fp32, MlaGate::element_wise);
  for_each_target([&] {
    const Floats all = c.run(mla_decode, mla_decode_workspace, 0, 21);
    for (const int64_t r : {0, 7, 8, 20}) {
      CHECK(same_bits(c.run(mla_decode, mla_decode_workspace, r, 1).data(), &all[r * c.row_width()], c.row_width()));
    }
  });
}

TEST_CASE("a prompt's rows have the same bits however the prompt is cut, and on several threads", "[ops][mla]") {
  ThreadPool pool(3);
  for_seeds_and_targets([&](uint64_t seed) {
    Random random(seed);
    const Case c(random, kSmall, 150, 150, FloatFormat::bf16, FloatFormat::bf16, MlaGate::head_wise);
    const Floats whole = c.run(mla_prefill, mla_prefill_workspace, 0, 150, &pool);
    const int64_t cut = random.integer(1, 40);
    Floats pieces;
    for (int64_t first = 0; first < 150; first += cut) {
      const Floats piece = c.run(mla_prefill, mla_prefill_workspace, first, std::min(cut, 150 - first));
      pieces.insert(pieces.end(), piece.begin(), piece.end());
    }
    CHECK(same_bits(pieces, whole));
  });
}

TEST_CASE("a prompt longer than a tile of rows keeps its accuracy", "[ops][mla]") {
  Random random(5);
  const Shape shape{.heads = 1, .nope_dim = 16, .rope_dim = 16, .latent_dim = 16, .value_dim = 16};
  const Case c(random, shape, 700, 700, FloatFormat::fp32, FloatFormat::fp32, MlaGate::none);
  const Floats expected = c.run(mla_prefill_reference, no_workspace, 0, 700);
  check_close(c.run(mla_prefill, mla_prefill_workspace, 0, 700), expected, tolerance::kMla);
}

TEST_CASE("no row sees a later position, not even a NaN there", "[ops][mla]") {
  Random random(6);
  const Case c(random, kSmall, 70, 6, FloatFormat::fp32, FloatFormat::fp32, MlaGate::none);
  Case spoilt = c;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::fill_n(spoilt.latents.floats.end() - 3 * c.args.cache.latent_stride, 3 * c.args.cache.latent_stride, nan);
  std::fill_n(spoilt.rope_keys.floats.end() - 3 * c.args.cache.rope_key_stride, 3 * c.args.cache.rope_key_stride, nan);
  spoilt.args.cache.latent = spoilt.latents.data();
  spoilt.args.cache.rope_key = spoilt.rope_keys.data();
  for_each_target([&] {
    CHECK(same_bits(c.run(mla_decode, mla_decode_workspace, 0, 6).data(),
                    spoilt.run(mla_decode, mla_decode_workspace, 0, 6).data(), 3 * c.row_width()));
    CHECK(same_bits(c.run(mla_prefill, mla_prefill_workspace, 0, 6).data(),
                    spoilt.run(mla_prefill, mla_prefill_workspace, 0, 6).data(), 3 * c.row_width()));
  });
}

TEST_CASE("scores far apart neither overflow nor vanish", "[ops][mla]") {
  Random random(8);
  Case c(random, kSmall, 300, 4, FloatFormat::fp32, FloatFormat::fp32, MlaGate::none);
  c.args.scale *= 300.0f;
  const Floats expected = c.run(mla_decode_reference, no_workspace, 0, 4);
  for_each_target([&] {
    // Scores of some thousands carry rounding errors of 1e-3, which the softmax passes on.
    check_close(c.run(mla_decode, mla_decode_workspace, 0, 4), expected, 2e-2);
    check_close(c.run(mla_prefill, mla_prefill_workspace, 0, 4), expected, 2e-2);
  });
}

TEST_CASE("a prompt's workspace does not grow with rows or positions", "[ops][mla]") {
  MlaArgs a{.rows = 1, .heads = 64, .nope_dim = 128, .rope_dim = 64, .latent_dim = 512, .value_dim = 128};
  const int64_t decode = mla_decode_workspace(a);
  const int64_t prefill = mla_prefill_workspace(a);
  a.rows = 8192;
  a.first_position = 1 << 20;
  CHECK(mla_decode_workspace(a) == decode);
  CHECK(mla_prefill_workspace(a) == prefill);
  CHECK(prefill * 4 < (2 << 20));
}

TEST_CASE("dims that no vector divides are refused", "[ops][mla]") {
  MlaArgs a{.rows = 1, .heads = 1, .nope_dim = 16, .rope_dim = 20, .latent_dim = 16, .value_dim = 16};
  CHECK_THROWS_AS(mla_decode(a), Error);
  CHECK_THROWS_AS(mla_prefill(a), Error);
}

TEST_CASE("appended rows are rounded to the cache's format", "[ops][mla]") {
  Random random(9);
  const Floats x = random.normal(3 * 20);
  const Stored expected = store_as(FloatFormat::bf16, x);
  std::vector<uint16_t> cache(3 * 24);
  mla_cache_append(
      {.rows = 3, .width = 20, .x = x.data(), .format = FloatFormat::bf16, .y = cache.data(), .y_stride = 24});
  for (int64_t r = 0; r < 3; ++r) CHECK(same_bits(&cache[r * 24], &expected.halves[r * 20], 20));
  Floats exact(3 * 20);
  mla_cache_append({.rows = 3, .width = 20, .x = x.data(), .y = exact.data()});
  CHECK(same_bits(exact, x));
}

}  // namespace
}  // namespace tandem
