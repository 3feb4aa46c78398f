#include <algorithm>
#include <limits>

#include "kernels/router.h"
#include "runtime/common/error.h"
#include "tests/kernels/ops_fixture.h"

namespace tandem {
namespace {

struct Choice {
  std::vector<int32_t> experts;
  Floats weights;
};

Choice run(void (*operation)(const RouterArgs&), RouterArgs args) {
  Choice c{std::vector<int32_t>(args.rows * args.num_experts_chosen, -1), Floats(args.rows * args.num_experts_chosen)};
  args.experts = c.experts.data();
  args.weights = c.weights.data();
  Floats workspace(router_workspace(args), std::numeric_limits<float>::quiet_NaN());
  args.workspace = workspace.data();
  operation(args);
  return c;
}

TEST_CASE("the router chooses and weighs as its fp64 form, from weights of any format", "[ops][router]") {
  for_seeds_and_targets([](uint64_t seed) {
    Random random(seed);
    const int64_t rows = random.integer(1, 6);
    const int64_t hidden = random.integer(1, 300);
    const int64_t experts = 64;
    const Floats x = random.normal(rows * (hidden + 1));
    const Floats bias = random.normal(experts, 0.1f);
    for (const FloatFormat format : {FloatFormat::fp32, FloatFormat::bf16, FloatFormat::fp16}) {
      const Stored weight = store_as(format, random.normal(experts * hidden, 0.2f));
      for (const int64_t groups : {1, 8}) {
        RouterArgs args{.rows = rows,
                        .hidden_size = hidden,
                        .num_experts = experts,
                        .num_groups = groups,
                        .num_groups_chosen = groups == 1 ? 1 : 4,
                        .num_experts_chosen = 6,
                        .scaling = 2.5f,
                        .x = x.data(),
                        .x_stride = hidden + 1,
                        .weight_format = format,
                        .weight = weight.data(),
                        .bias = bias.data()};
        const Choice expected = run(router_reference, args);
        const Choice got = run(router, args);
        CHECK(got.experts == expected.experts);
        check_close(got.weights, expected.weights, tolerance::kRouterWeight);
        for (int64_t r = 0; r < rows; ++r) {
          float sum = 0;
          for (int64_t i = 0; i < 6; ++i) sum += got.weights[r * 6 + i];
          CHECK(sum == Approx(2.5f));
        }
        args.normalize = false;
        check_close(run(router, args).weights, run(router_reference, args).weights, tolerance::kRouterWeight);
      }
    }
  });
}

TEST_CASE("a row's choice and weights have the same bits alone, on threads, and on every instruction set",
          "[ops][router]") {
  ThreadPool pool(3);
  for (const uint64_t seed : kSeeds) {
    Random random(seed);
    const int64_t rows = 7;
    const int64_t hidden = 200 + random.integer(0, 40);
    const int64_t experts = 72;
    const Floats x = random.normal(rows * hidden);
    const Stored weight = store_as(FloatFormat::bf16, random.normal(experts * hidden, 0.2f));
    RouterArgs args{.rows = rows,
                    .hidden_size = hidden,
                    .num_experts = experts,
                    .num_groups = 8,
                    .num_groups_chosen = 4,
                    .num_experts_chosen = 8,
                    .scaling = 2.5f,
                    .x = x.data(),
                    .weight_format = FloatFormat::bf16,
                    .weight = weight.data()};
    const Choice first = run(router, args);
    for_each_target([&] {
      RouterArgs again = args;
      again.pool = &pool;
      const Choice all = run(router, again);
      CHECK(all.experts == first.experts);
      CHECK(same_bits(all.weights, first.weights));
      for (int64_t r = 0; r < rows; ++r) {
        RouterArgs one = args;
        one.rows = 1;
        one.x = &x[r * hidden];
        const Choice alone = run(router, one);
        CHECK(same_bits(alone.experts.data(), &first.experts[r * 8], 8));
        CHECK(same_bits(alone.weights.data(), &first.weights[r * 8], 8));
      }
    });
  }
}

/// Logits are x[0] * weight[e] with x = 1.
Choice route(const Floats& logits, const Floats& bias, int64_t groups, int64_t groups_chosen, int64_t chosen) {
  const float one = 1.0f;
  return run(router, {.rows = 1,
                      .hidden_size = 1,
                      .num_experts = static_cast<int64_t>(logits.size()),
                      .num_groups = groups,
                      .num_groups_chosen = groups_chosen,
                      .num_experts_chosen = chosen,
                      .x = &one,
                      .weight = logits.data(),
                      .bias = bias.empty() ? nullptr : bias.data()});
}

TEST_CASE("ties go to the lower group and the lower expert", "[ops][router]") {
  CHECK(route(Floats(8, 0.5f), {}, 4, 2, 3).experts == std::vector<int32_t>{0, 1, 2});
  CHECK(route({0, 1, 1, 0, 1, 1, 0, 0}, {}, 1, 1, 3).experts == std::vector<int32_t>{1, 2, 4});
}

TEST_CASE("a group counts by the sum of its two best, not by its best", "[ops][router]") {
  // Group 0 has the largest expert of all, but group 1 the better pair.
  CHECK(route({3, -3, -3, 2, 2, -3}, {}, 2, 1, 2).experts == std::vector<int32_t>{3, 4});
}

TEST_CASE("the bias steers the choice and leaves the weights alone", "[ops][router]") {
  const Choice c = route({0, 0, 0, 0}, {0, 5, 0, 4}, 1, 1, 2);
  CHECK(c.experts == std::vector<int32_t>{1, 3});
  CHECK(c.weights[0] == 0.5f);
  CHECK(c.weights[1] == 0.5f);
}

TEST_CASE("NaN and infinite logits still give distinct experts in range", "[ops][router]") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  CHECK(route(Floats(8, nan), {}, 4, 2, 4).experts == std::vector<int32_t>{0, 1, 2, 3});
  CHECK(route({nan, 0, -inf, inf}, {}, 1, 1, 2).experts == std::vector<int32_t>{1, 3});
}

TEST_CASE("more experts than the chosen groups hold are refused", "[ops][router]") {
  CHECK_THROWS_AS(route(Floats(8, 0.0f), {}, 4, 2, 5), Error);
  CHECK_THROWS_AS(route(Floats(8, 0.0f), {}, 3, 1, 1), Error);
}

}  // namespace
}  // namespace tandem
