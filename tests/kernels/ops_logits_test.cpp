#include <algorithm>
#include <limits>

#include "kernels/logits.h"
#include "runtime/common/error.h"
#include "tests/kernels/ops_fixture.h"

namespace tandem {
namespace {

const float kNan = std::numeric_limits<float>::quiet_NaN();
const float kInf = std::numeric_limits<float>::infinity();

TEST_CASE("argmax, log_softmax and the best tokens agree with their references", "[ops][logits]") {
  ThreadPool pool(3);
  for_seeds_and_targets([&](uint64_t seed) {
    Random random(seed);
    const int64_t rows = random.integer(1, 4);
    const int64_t vocab = random.integer(1, 3000);
    const int64_t stride = vocab + 5;
    Floats logits = random.normal(rows * stride, 4.0f);
    for (float& v : logits) v = std::round(v * 8) / 8;                                     // ties
    for (int64_t r = 0; r < rows; ++r) std::fill_n(&logits[r * stride + vocab], 5, 1e9f);  // no tokens
    if (vocab > 3) logits[random.integer(0, vocab - 1)] = kNan;
    const LogitRows x{.rows = rows, .vocab_size = vocab, .logits = logits.data(), .stride = stride, .pool = &pool};

    std::vector<int32_t> tokens(rows);
    std::vector<int32_t> expected_tokens(rows);
    Floats values(rows);
    Floats expected_values(rows);
    argmax(x, tokens.data(), values.data());
    argmax_reference(x, expected_tokens.data(), expected_values.data());
    CHECK(tokens == expected_tokens);
    CHECK(same_bits(values, expected_values));

    log_sum_exp(x, values.data());
    log_sum_exp_reference(x, expected_values.data());
    check_close(values, expected_values, tolerance::kLogSumExp);

    const int64_t k = std::min<int64_t>(random.integer(1, 64), vocab);
    tokens.assign(rows * k, -1);
    expected_tokens.assign(rows * k, -1);
    values.assign(rows * k, 0);
    expected_values.assign(rows * k, 0);
    top_logits(x, k, tokens.data(), values.data());
    top_logits_reference(x, k, expected_tokens.data(), expected_values.data());
    CHECK(tokens == expected_tokens);
    CHECK(same_bits(values, expected_values));

    for (float& v : logits) v = std::isnan(v) ? 0.0f : v;
    Floats y(rows * vocab);
    Floats expected(rows * vocab);
    log_softmax(x, y.data());
    log_softmax_reference(x, expected.data());
    check_close(y, expected, tolerance::kLogSumExp);
    Floats one(vocab);
    for (int64_t r = 0; r < rows; ++r) {
      log_softmax({.rows = 1, .vocab_size = vocab, .logits = &logits[r * stride]}, one.data());
      CHECK(same_bits(one.data(), &y[r * vocab], vocab));
    }
  });
}

TEST_CASE("rows of nothing but NaN or -infinity have the first token as their best", "[ops][logits]") {
  for_each_target([] {
    for (const float value : {kNan, -kInf}) {
      const Floats logits(37, value);
      const LogitRows x{.rows = 1, .vocab_size = 37, .logits = logits.data()};
      int32_t token = -1;
      argmax(x, &token);
      CHECK(token == 0);
      int32_t best[3];
      float values[3];
      top_logits(x, 3, best, values);
      CHECK(std::vector<int32_t>(best, best + 3) == std::vector<int32_t>{0, 1, 2});
      float y = 0;
      log_sum_exp(x, &y);
      CHECK(y == -kInf);
    }
  });
}

TEST_CASE("large logits do not overflow log_sum_exp", "[ops][logits]") {
  for_each_target([] {
    const Floats logits = {1e30f, 1e30f, -1e30f};
    float y = 0;
    log_sum_exp({.rows = 1, .vocab_size = 3, .logits = logits.data()}, &y);
    CHECK(y == Approx(1e30f));
    const Floats infinite = {kInf, 0.0f};
    log_sum_exp({.rows = 1, .vocab_size = 2, .logits = infinite.data()}, &y);
    CHECK(y == kInf);
  });
}

TEST_CASE("the best tokens are at most 64, and at most the vocabulary", "[ops][logits]") {
  const Floats logits(100, 0.0f);
  std::vector<int32_t> tokens(100);
  Floats values(100);
  CHECK_THROWS_AS(top_logits({.rows = 1, .vocab_size = 100, .logits = logits.data()}, 65, tokens.data(), values.data()),
                  Error);
  CHECK_THROWS_AS(top_logits({.rows = 1, .vocab_size = 3, .logits = logits.data()}, 4, tokens.data(), values.data()),
                  Error);
}

}  // namespace
}  // namespace tandem
