#include <cmath>

#include "kernels/rope.h"
#include "runtime/common/error.h"
#include "tests/catch.h"

namespace tandem {
namespace {

RopeConfig ling_with_yarn(YarnScaling yarn) {
  return {.rope_dim = 64, .theta = 6e6, .yarn = yarn};
}

TEST_CASE("without YaRN frequencies fall geometrically and nothing is scaled", "[ops][rope]") {
  const RopeTable table = build_rope_table({.rope_dim = 64, .theta = 6e6});
  REQUIRE(table.inverse_frequencies.size() == 32);
  CHECK(table.inverse_frequencies[0] == 1.0);
  CHECK(table.inverse_frequencies[31] == Approx(std::pow(6e6, -62.0 / 64.0)).epsilon(1e-14));
  CHECK(table.rotation_factor == 1.0);
  CHECK(table.softmax_factor == 1.0);
}

TEST_CASE("YaRN for the million-token window keeps pairs up to 14 and slows pairs from 22 on fourfold", "[ops][rope]") {
  const RopeTable plain = build_rope_table({.rope_dim = 64, .theta = 6e6});
  const RopeTable yarn = build_rope_table(ling_with_yarn({.factor = 4.0, .original_max_position_embeddings = 262144}));
  for (int j = 0; j < 32; ++j) {
    const double ratio = yarn.inverse_frequencies[j] / plain.inverse_frequencies[j];
    const double ramp = std::fmin(std::fmax((j - 14) / 8.0, 0.0), 1.0);
    CHECK(ratio == Approx(1.0 - ramp + ramp / 4.0).epsilon(1e-14));
  }
  CHECK(yarn.inverse_frequencies[14] == plain.inverse_frequencies[14]);
  CHECK(yarn.inverse_frequencies[15] < plain.inverse_frequencies[15]);
  CHECK(yarn.inverse_frequencies[21] > plain.inverse_frequencies[21] / 4);
  CHECK(yarn.inverse_frequencies[22] == plain.inverse_frequencies[22] / 4);
  CHECK(yarn.rotation_factor == Approx(1.138629).epsilon(1e-6));
  CHECK(yarn.rotation_factor * yarn.rotation_factor == Approx(1.2965).epsilon(1e-4));
  CHECK(yarn.softmax_factor == 1.0);
}

TEST_CASE("mscale and mscale_all_dim move YaRN's magnitude to the softmax", "[ops][rope]") {
  const double log4 = std::log(4.0);
  RopeTable table = build_rope_table(ling_with_yarn(
      {.factor = 4.0, .original_max_position_embeddings = 262144, .mscale = 0.7, .mscale_all_dim = 1.2}));
  CHECK(table.rotation_factor == Approx((0.07 * log4 + 1) / (0.12 * log4 + 1)).epsilon(1e-14));
  CHECK(table.softmax_factor == Approx(std::pow(0.12 * log4 + 1, 2)).epsilon(1e-14));
  table = build_rope_table(
      ling_with_yarn({.factor = 4.0, .original_max_position_embeddings = 262144, .attention_factor = 1.5}));
  CHECK(table.rotation_factor == 1.5);
  table = build_rope_table(
      ling_with_yarn({.factor = 4.0, .original_max_position_embeddings = 262144, .mscale_all_dim = 1.0}));
  CHECK(table.rotation_factor == Approx(0.1 * log4 + 1));
  CHECK(table.softmax_factor == Approx(std::pow(0.1 * log4 + 1, 2)));
}

TEST_CASE("YaRN with factor 1 is plain", "[ops][rope]") {
  const RopeTable plain = build_rope_table({.rope_dim = 64, .theta = 1e4});
  const RopeTable yarn = build_rope_table(
      {.rope_dim = 64, .theta = 1e4, .yarn = YarnScaling{.factor = 1.0, .original_max_position_embeddings = 4096}});
  for (int j = 0; j < 32; ++j)
    CHECK(yarn.inverse_frequencies[j] == Approx(plain.inverse_frequencies[j]).epsilon(1e-15));
  CHECK(yarn.rotation_factor == 1.0);
}

TEST_CASE("a config that describes no rotary embedding is refused", "[ops][rope]") {
  CHECK_THROWS_AS(build_rope_table({.rope_dim = 63}), Error);
  CHECK_THROWS_AS(build_rope_table({.rope_dim = 0}), Error);
  CHECK_THROWS_AS(build_rope_table({.rope_dim = int64_t{1} << 40}), Error);
  CHECK_THROWS_AS(build_rope_table({.rope_dim = 64, .theta = 1.0}), Error);
  CHECK_THROWS_AS(build_rope_table({.rope_dim = 64, .theta = NAN}), Error);
  CHECK_THROWS_AS(build_rope_table(ling_with_yarn({.factor = 0.0, .original_max_position_embeddings = 4096})), Error);
  CHECK_THROWS_AS(build_rope_table(ling_with_yarn({.factor = 4.0, .original_max_position_embeddings = 0})), Error);
  CHECK_THROWS_AS(
      build_rope_table(ling_with_yarn({.factor = 4.0, .original_max_position_embeddings = 4096, .beta_fast = -1.0})),
      Error);
}

}  // namespace
}  // namespace tandem
