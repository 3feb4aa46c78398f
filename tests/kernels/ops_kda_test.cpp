#include <algorithm>
#include <limits>

#include "kernels/kda_chunked.h"
#include "kernels/kda_step.h"
#include "kernels/l2_norm.h"
#include "tests/kernels/ops_fixture.h"

namespace tandem {
namespace {

/// Random rows as a KDA layer would feed them: unit keys, scaled unit queries, log decays in (-5, 0).
struct Case {
  int64_t heads;
  int64_t key_dim;
  int64_t value_dim;
  int64_t rows;
  Floats q, k, v, g, beta, state;

  Case(Random& random, int64_t rows, int64_t heads, int64_t key_dim, int64_t value_dim, float lowest_decay = -5.0f)
      : heads(heads), key_dim(key_dim), value_dim(value_dim), rows(rows) {
    q = random.normal(rows * heads * key_dim);
    k = random.normal(rows * heads * key_dim);
    v = random.normal(rows * heads * value_dim);
    beta = random.uniform(rows * heads, 0.0f, 1.0f);
    state = random.normal(heads * key_dim * value_dim, 0.3f);
    // From heads that hardly forget to heads that forget at once.
    const float floor = lowest_decay * random.uniform(1, 0.0f, 1.0f)[0];
    g = random.uniform(rows * heads * key_dim, floor, 0.0f);
    const float scale = 1.0f / std::sqrt(static_cast<float>(key_dim));
    l2_norm_reference({.rows = rows, .heads = heads, .width = key_dim, .scale = scale, .x = q.data(), .y = q.data()});
    l2_norm_reference({.rows = rows, .heads = heads, .width = key_dim, .x = k.data(), .y = k.data()});
  }

  KdaRows rows_from(int64_t first, int64_t count) const {
    return {.rows = count,
            .k = k.data() + first * heads * key_dim,
            .v = v.data() + first * heads * value_dim,
            .g = g.data() + first * heads * key_dim,
            .beta = beta.data() + first * heads};
  }
  KdaStepArgs step(int64_t first, int64_t count, float* o, float* S) const {
    return {.heads = heads,
            .key_dim = key_dim,
            .value_dim = value_dim,
            .rows = rows_from(first, count),
            .q = q.data() + first * heads * key_dim,
            .o = o,
            .state = S};
  }
  KdaChunkedArgs chunked(int64_t first, int64_t count, float* o, float* S) const {
    return {.heads = heads,
            .key_dim = key_dim,
            .value_dim = value_dim,
            .rows = rows_from(first, count),
            .q = q.data() + first * heads * key_dim,
            .o = o,
            .state = S};
  }
  int64_t outputs() const { return rows * heads * value_dim; }
};

/// The recurrence in fp64.
void recurrence(const Case& c, std::vector<double>& o, std::vector<double>& S) {
  o.assign(c.outputs(), 0.0);
  S.assign(c.state.begin(), c.state.end());
  for (int64_t h = 0; h < c.heads; ++h) {
    double* s = &S[h * c.key_dim * c.value_dim];
    for (int64_t t = 0; t < c.rows; ++t) {
      const float* k = &c.k[(t * c.heads + h) * c.key_dim];
      const float* q = &c.q[(t * c.heads + h) * c.key_dim];
      const float* g = &c.g[(t * c.heads + h) * c.key_dim];
      for (int64_t j = 0; j < c.value_dim; ++j) {
        double recalled = 0;
        for (int64_t d = 0; d < c.key_dim; ++d) {
          s[d * c.value_dim + j] *= std::exp(double{g[d]});
          recalled += s[d * c.value_dim + j] * k[d];
        }
        const double u = c.beta[t * c.heads + h] * (c.v[(t * c.heads + h) * c.value_dim + j] - recalled);
        double read = 0;
        for (int64_t d = 0; d < c.key_dim; ++d) {
          s[d * c.value_dim + j] += k[d] * u;
          read += s[d * c.value_dim + j] * q[d];
        }
        o[(t * c.heads + h) * c.value_dim + j] = read;
      }
    }
  }
}

TEST_CASE("kda_step and its reference follow the recurrence", "[ops][kda]") {
  for_seeds_and_targets([](uint64_t seed) {
    Random random(seed);
    const Case c(random, random.integer(1, 9), random.integer(1, 3), random.integer(1, 150), 16 * random.integer(1, 9));
    std::vector<double> expected;
    std::vector<double> expected_state;
    recurrence(c, expected, expected_state);
    Floats o(c.outputs());
    Floats state = c.state;
    kda_step(c.step(0, c.rows, o.data(), state.data()));
    check_close(o, expected, tolerance::kKdaStep);
    check_close(state, expected_state, tolerance::kKdaStep);
    state = c.state;
    kda_step_reference(c.step(0, c.rows, o.data(), state.data()));
    check_close(o, expected, tolerance::kKdaStep);
    check_close(state, expected_state, tolerance::kKdaStep);
  });
}

TEST_CASE("kda_step gives serial decoding's bits however rows are grouped, drafts of 1 to 8 rows included",
          "[ops][kda]") {
  ThreadPool pool(3);
  for_seeds_and_targets([&](uint64_t seed) {
    Random random(seed);
    const Case c(random, 8, 2, 128, 112);
    const int64_t row = c.heads * c.value_dim;
    Floats serial(c.outputs());
    std::vector<Floats> state_after(c.rows + 1);
    state_after[0] = c.state;
    for (int64_t t = 0; t < c.rows; ++t) {
      state_after[t + 1] = state_after[t];
      kda_step(c.step(t, 1, &serial[t * row], state_after[t + 1].data()));
    }
    for (int64_t rows = 1; rows <= 8; ++rows) {
      Floats o(rows * row);
      Floats state = c.state;
      KdaStepArgs args = c.step(0, rows, o.data(), state.data());
      args.pool = &pool;
      kda_step(args);
      CHECK(same_bits(o.data(), serial.data(), rows * row));
      CHECK(same_bits(state, state_after[rows]));
    }
  });
}

TEST_CASE("a verified block leaves the state alone, and replaying the kept rows leaves serial decoding's bits",
          "[ops][kda]") {
  for_seeds_and_targets([](uint64_t seed) {
    Random random(seed);
    const Case c(random, 12, 2, 128, 128);
    const int64_t row = c.heads * c.value_dim;
    Floats serial(c.outputs());
    Floats state = c.state;
    kda_step(c.step(0, c.rows, serial.data(), state.data()));

    for (int64_t kept = 0; kept <= 5; ++kept) {
      Floats o(5 * row);
      Floats S = c.state;
      KdaStepArgs verify = c.step(0, 5, o.data(), S.data());
      verify.commit = false;
      kda_step(verify);
      CHECK(same_bits(o.data(), serial.data(), 5 * row));
      CHECK(same_bits(S, c.state));

      // The next pass: kept rows first, then new rows, once for good and once on trial.
      Floats kept_alone = c.state;
      KdaStepArgs replay{.heads = c.heads,
                         .key_dim = c.key_dim,
                         .value_dim = c.value_dim,
                         .replay = c.rows_from(0, kept),
                         .state = kept_alone.data()};
      kda_step(replay);
      Floats serial_kept = c.state;
      Floats unused(5 * row);
      kda_step(c.step(0, kept, unused.data(), serial_kept.data()));
      CHECK(same_bits(kept_alone, serial_kept));
      for (const bool commit : {false, true}) {
        Floats next(4 * row);
        S = c.state;
        KdaStepArgs go_on = c.step(kept, 4, next.data(), S.data());
        go_on.replay = c.rows_from(0, kept);
        go_on.commit = commit;
        kda_step(go_on);
        CHECK(same_bits(next.data(), &serial[kept * row], 4 * row));
        Floats expected = serial_kept;
        if (commit) kda_step(c.step(kept, 4, next.data(), expected.data()));
        CHECK(same_bits(S, expected));
        kda_step_reference(go_on);  // agrees about what is kept, too
      }
    }
  });
}

TEST_CASE("the chunked form is the recurrence to fp32 accuracy, for any number of rows and any decay", "[ops][kda]") {
  for_seeds_and_targets([](uint64_t seed) {
    Random random(seed);
    for (const float lowest_decay : {-5.0f, -0.02f, -60.0f}) {
      const int64_t rows[] = {1, 15, 64, 83, 150};
      const Case c(random, rows[seed % 5], 1, 128, 64, lowest_decay);
      std::vector<double> expected;
      std::vector<double> expected_state;
      recurrence(c, expected, expected_state);
      Floats o(c.outputs());
      Floats state = c.state;
      KdaChunkedArgs args = c.chunked(0, c.rows, o.data(), state.data());
      kda_chunked_reference(args);
      CHECK(relative_norm(o, expected) < 1e-7);
      CHECK(relative_norm(state, expected_state) < 1e-7);
      Floats workspace(kda_chunked_workspace(args), std::numeric_limits<float>::quiet_NaN());
      state = c.state;
      args.workspace = workspace.data();
      kda_chunked(args);
      CHECK(relative_norm(o, expected) < tolerance::kKdaChunkedNorm);
      CHECK(relative_norm(state, expected_state) < tolerance::kKdaChunkedNorm);
    }
  });
}

TEST_CASE("keys that repeat do not disturb the chunked form", "[ops][kda]") {
  Random random(7);
  Case c(random, 130, 1, 64, 32, -0.01f);
  for (int64_t t = 1; t < c.rows; ++t) std::copy_n(c.k.begin(), c.key_dim, c.k.begin() + t * c.key_dim);
  std::fill(c.beta.begin(), c.beta.end(), 0.999f);
  std::vector<double> expected;
  std::vector<double> expected_state;
  recurrence(c, expected, expected_state);
  for_each_target([&] {
    Floats o(c.outputs());
    Floats state = c.state;
    KdaChunkedArgs args = c.chunked(0, c.rows, o.data(), state.data());
    Floats workspace(kda_chunked_workspace(args));
    args.workspace = workspace.data();
    kda_chunked(args);
    CHECK(relative_norm(o, expected) < tolerance::kKdaChunkedNorm);
    CHECK(relative_norm(state, expected_state) < tolerance::kKdaChunkedNorm);
  });
}

TEST_CASE("a prompt cut at whole chunks, or worked on by several threads, has the same bits", "[ops][kda]") {
  ThreadPool pool(3);
  for_seeds_and_targets([&](uint64_t seed) {
    Random random(seed);
    const Case c(random, 150, 2, 32, 48);
    const int64_t row = c.heads * c.value_dim;
    Floats whole(c.outputs());
    Floats whole_state = c.state;
    KdaChunkedArgs args = c.chunked(0, c.rows, whole.data(), whole_state.data());
    args.pool = &pool;
    Floats workspace(kda_chunked_workspace(args));
    args.workspace = workspace.data();
    kda_chunked(args);
    Floats pieces(c.outputs());
    Floats state = c.state;
    for (int64_t first = 0; first < c.rows; first += 64) {
      args = c.chunked(first, std::min<int64_t>(64, c.rows - first), &pieces[first * row], state.data());
      args.workspace = workspace.data();
      kda_chunked(args);
    }
    CHECK(same_bits(pieces, whole));
    CHECK(same_bits(state, whole_state));
  });
}

TEST_CASE("no row of the chunked form sees a later row", "[ops][kda]") {
  Random random(3);
  Case c(random, 40, 1, 32, 16);
  for_each_target([&] {
    Floats clean(c.outputs());
    Floats spoilt(c.outputs());
    Floats state = c.state;
    KdaChunkedArgs args = c.chunked(0, c.rows, clean.data(), state.data());
    Floats workspace(kda_chunked_workspace(args));
    args.workspace = workspace.data();
    kda_chunked(args);
    Case bad = c;
    std::fill_n(bad.v.begin() + 20 * c.value_dim, 20 * c.value_dim, std::numeric_limits<float>::quiet_NaN());
    state = c.state;
    args = bad.chunked(0, c.rows, spoilt.data(), state.data());
    args.workspace = workspace.data();
    kda_chunked(args);
    CHECK(same_bits(clean.data(), spoilt.data(), 20 * c.value_dim));
  });
}

}  // namespace
}  // namespace tandem
