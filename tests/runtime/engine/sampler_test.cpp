#include "runtime/engine/sampler.h"

#include <cmath>
#include <limits>
#include <map>

#include "tests/catch.h"

namespace tandem {
namespace {

const std::vector<bool>& all_of(size_t n) {
  static std::map<size_t, std::vector<bool>> masks;
  return masks.try_emplace(n, n, true).first->second;
}

int32_t sample(const SamplingParameters& parameters, std::vector<float> logits, int64_t position = 0,
               const std::vector<int32_t>& prompt = {}, const std::vector<int32_t>& answer = {}) {
  Sampler sampler(parameters, prompt, all_of(logits.size()));
  for (const int32_t id : answer) sampler.accept(id);
  return sampler.sample(logits, position);
}

/// How often each token is drawn over many positions.
std::vector<double> shares(const SamplingParameters& parameters, const std::vector<float>& logits,
                           int64_t draws = 40'000) {
  Sampler sampler(parameters, {}, all_of(logits.size()));
  std::vector<double> share(logits.size());
  for (int64_t position = 0; position < draws; ++position) {
    std::vector<float> copy = logits;
    share[sampler.sample(copy, position)] += 1.0 / static_cast<double>(draws);
  }
  return share;
}

SamplingParameters with(const std::function<void(SamplingParameters&)>& change) {
  SamplingParameters parameters;
  change(parameters);
  return parameters;
}

const float kLog2 = std::log(2.0F);

TEST_CASE("temperature 0 takes the likeliest token, the lowest id on ties", "[sampler]") {
  const auto greedy = with([](auto& p) { p.temperature = 0; });
  CHECK(greedy.is_argmax());
  CHECK(sample(greedy, {1, 5, 3}) == 1);
  CHECK(sample(greedy, {5, 1, 5}) == 0);
  CHECK(sample(greedy, {-3, -2, -2}) == 1);
}

TEST_CASE("tokens are drawn as often as the distribution says", "[sampler]") {
  const std::vector<float> logits = {0, kLog2, 2 * kLog2, -30};  // 1 : 2 : 4 : nothing
  const auto share = shares({}, logits);
  CHECK(share[0] == Approx(1.0 / 7).margin(0.01));
  CHECK(share[1] == Approx(2.0 / 7).margin(0.01));
  CHECK(share[2] == Approx(4.0 / 7).margin(0.01));
  CHECK(share[3] == 0);
}

TEST_CASE("temperature sharpens and flattens", "[sampler]") {
  const std::vector<float> logits = {0, kLog2};
  CHECK(shares(with([](auto& p) { p.temperature = 0.5; }), logits)[1] == Approx(4.0 / 5).margin(0.01));
  CHECK(shares(with([](auto& p) { p.temperature = 2; }), logits)[1] ==
        Approx(std::sqrt(2) / (1 + std::sqrt(2))).margin(0.01));
  CHECK(shares(with([](auto& p) { p.temperature = 1e-9; }), logits)[1] == Approx(1.0));
}

TEST_CASE("top_k keeps the likeliest, lower ids first on ties", "[sampler]") {
  const auto share = shares(with([](auto& p) { p.top_k = 2; }), {0, kLog2, 0, 0});
  CHECK(share[1] == Approx(2.0 / 3).margin(0.01));
  CHECK(share[0] == Approx(1.0 / 3).margin(0.01));
  CHECK(share[2] + share[3] == 0);
  CHECK(shares(with([](auto& p) { p.top_k = 1; }), {0, 1, 0.5F})[1] == Approx(1.0));
}

TEST_CASE("top_p keeps the smallest set with that mass", "[sampler]") {
  const std::vector<float> logits = {0, kLog2, 2 * kLog2};  // 1/7, 2/7, 4/7
  const auto exact = shares(with([](auto& p) { p.top_p = 4.0 / 7 - 1e-6; }), logits);
  CHECK(exact[2] == Approx(1.0));
  const auto more = shares(with([](auto& p) { p.top_p = 4.0 / 7 + 1e-6; }), logits);
  CHECK(more[0] == 0);
  CHECK(more[1] == Approx(1.0 / 3).margin(0.01));
  const auto least = shares(with([](auto& p) { p.top_p = 0; }), logits);
  CHECK(least[2] == Approx(1.0));
}

TEST_CASE("min_p drops what is far below the likeliest", "[sampler]") {
  const auto share = shares(with([](auto& p) { p.min_p = 0.4; }), {0, kLog2, 2 * kLog2});
  CHECK(share[0] == 0);
  CHECK(share[1] == Approx(1.0 / 3).margin(0.01));
}

TEST_CASE("a draw depends on seed and position alone", "[sampler]") {
  const std::vector<float> logits(64, 0.0F);
  const auto seeded = with([](auto& p) { p.seed = 42; });
  std::map<int32_t, int> seen;
  for (int64_t position = 0; position < 200; ++position) {
    const int32_t token = sample(seeded, logits, position);
    CHECK(token == sample(seeded, logits, position));
    ++seen[token];
  }
  CHECK(seen.size() > 40);
  int same = 0;
  for (int64_t position = 0; position < 200; ++position)
    same += sample(seeded, logits, position) == sample(with([](auto& p) { p.seed = 43; }), logits, position);
  CHECK(same < 20);
  CHECK(uniform_at(1, 2) != uniform_at(2, 1));
}

TEST_CASE("penalties count the answer, repetition the prompt too", "[sampler]") {
  const auto greedy = [](auto change) {
    return with([&](auto& p) {
      p.temperature = 0;
      change(p);
    });
  };
  const std::vector<float> logits = {2.0F, 1.9F};
  CHECK(sample(greedy([](auto& p) { p.presence_penalty = 0.2; }), logits, 0, {0}, {}) == 0);
  CHECK(sample(greedy([](auto& p) { p.presence_penalty = 0.2; }), logits, 0, {}, {0}) == 1);
  CHECK(sample(greedy([](auto& p) { p.frequency_penalty = 0.06; }), logits, 0, {}, {0}) == 0);
  CHECK(sample(greedy([](auto& p) { p.frequency_penalty = 0.06; }), logits, 0, {}, {0, 0}) == 1);
  CHECK(sample(greedy([](auto& p) { p.repetition_penalty = 1.2; }), logits, 0, {0}, {}) == 1);
  CHECK(sample(greedy([](auto& p) { p.repetition_penalty = 1.2; }), {-2.0F, -2.1F}, 0, {0}, {}) == 1);
  CHECK_FALSE(greedy([](auto& p) { p.repetition_penalty = 1.2; }).is_argmax());
}

TEST_CASE("a bias moves its token, and ids out of range are no harm", "[sampler]") {
  const auto biased = with([](auto& p) {
    p.temperature = 0;
    p.logit_bias = {{2, 100}, {-1, 100}, {99, 100}};
  });
  CHECK(sample(biased, {5, 4, -20}) == 2);
}

TEST_CASE("ids that stand for nothing are never chosen", "[sampler]") {
  const std::vector<bool> allowed = {true, false, true};
  for (const double temperature : {0.0, 1.0}) {
    Sampler sampler(with([&](auto& p) { p.temperature = temperature; }), {}, allowed);
    std::vector<float> logits = {1, 50, 2};
    for (int64_t position = 0; position < 50; ++position) {
      std::vector<float> copy = logits;
      CHECK(sampler.sample(copy, position) != 1);
    }
  }
  const std::vector<bool> none = {false};
  Sampler sampler({}, {}, none);
  std::vector<float> logits = {1};
  CHECK_THROWS_AS(sampler.sample(logits, 0), BadLogits);
}

TEST_CASE("values that are not numbers are an error, not a token", "[sampler]") {
  const float bad = GENERATE(std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                             -std::numeric_limits<float>::infinity());
  CHECK_THROWS_AS(sample({}, {0, bad, 1}), BadLogits);
  CHECK_THROWS_AS(sample(with([](auto& p) { p.temperature = 0; }), {0, bad, 1}), BadLogits);
}

}  // namespace
}  // namespace tandem
