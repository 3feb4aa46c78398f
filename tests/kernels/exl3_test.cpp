#include "kernels/exl3.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "kernels/float_format.h"
#include "tests/catch.h"
#include "tests/kernels/exl3_fixture.h"
#include "tests/kernels/targets.h"

namespace tandem {
namespace {

constexpr std::array kCodebooks{Codebook::three_inst, Codebook::mcg, Codebook::mul1};
constexpr double kTolerance = 1e-5;  // relative norm

bool bitwise_equal(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

TEST_CASE("the codebooks have the published values", "[exl3]") {
  struct Example {
    uint16_t state, three_inst, mcg, mul1;
  };
  const std::array examples{
      Example{0x0000, 0x3a25, 0x3f60, 0xc2e8}, Example{0x0001, 0xbb5b, 0x304e, 0x3921},
      Example{0x0002, 0x3b74, 0xba13, 0xb72d}, Example{0x0003, 0x34b6, 0x3ab8, 0x3239},
      Example{0x1234, 0xc066, 0x3e0f, 0xb89e}, Example{0x7FFF, 0xba96, 0x4172, 0x3fca},
      Example{0x8000, 0xb7f8, 0xb915, 0xbaf2}, Example{0xABCD, 0xb98e, 0x35e7, 0xbd42},
      Example{0xFFFF, 0xb110, 0x3acd, 0xb936},
  };
  for (const Example& e : examples) {
    INFO("state " << e.state);
    CHECK(exl3_state_value_reference(Codebook::three_inst, e.state) == e.three_inst);
    CHECK(exl3_state_value_reference(Codebook::mcg, e.state) == e.mcg);
    CHECK(exl3_state_value_reference(Codebook::mul1, e.state) == e.mul1);
  }
}

TEST_CASE("all 65,536 states of each codebook decode to the exact value", "[exl3]") {
  // At 8 bits a state is a byte and the one before it: a walk that takes every pair of bytes once visits every state.
  std::vector<uint8_t> walk;
  std::vector<int> next(256, 255);
  std::vector<int> stack{0};
  while (!stack.empty()) {
    const int at = stack.back();
    if (next[at] >= 0) {
      stack.push_back(next[at]--);
    } else {
      walk.push_back(static_cast<uint8_t>(at));
      stack.pop_back();
    }
  }
  REQUIRE(walk.size() == 65537);

  // Tiles are rings of their own: each takes 255 steps of the walk and starts where the one before ended.
  const int64_t in = 128, out = 640;
  std::vector<uint16_t> trellis(static_cast<size_t>(in * out / 2));
  for (size_t tile = 0; tile * 128 < trellis.size(); ++tile) {
    for (size_t i = 0; i < 256; ++i) {
      const uint8_t byte = walk[std::min<size_t>(tile * 255 + i, walk.size() - 1)];
      uint16_t& word = trellis[tile * 128 + ((i / 2) ^ 1)];
      word = static_cast<uint16_t>(i % 2 == 0 ? byte << 8 : word | byte);
    }
  }

  for (const Codebook codebook : kCodebooks) {
    INFO("codebook " << static_cast<int>(codebook));
    const Exl3Weight weight{
        .trellis = trellis.data(), .in_features = in, .out_features = out, .bits = 8, .codebook = codebook};
    std::vector<uint16_t> expected(static_cast<size_t>(in * out));
    exl3_decode_reference(weight, expected.data());
    for_each_target([&] {
      std::vector<uint16_t> got(expected.size(), 0x7E00);
      exl3_decode(weight, got.data(), nullptr);
      CHECK(got == expected);
    });
  }
}

TEST_CASE("every rate and codebook decodes exactly and multiplies within 1e-5", "[exl3]") {
  for (int bits = 1; bits <= 8; ++bits) {
    for (const Codebook codebook : kCodebooks) {
      INFO("bits " << bits << ", codebook " << static_cast<int>(codebook));
      const RandomExl3 random(384, 256, bits, codebook, 100 + bits, bits % 2 == 0);
      const std::vector<float> x = random_floats(2 * 384, bits);
      std::vector<uint16_t> expected_inner(384 * 256);
      exl3_decode_reference(random.weight, expected_inner.data());
      const std::vector<float> expected = run_exl3_reference(random.weight, x);
      for_each_target([&] {
        std::vector<uint16_t> inner(expected_inner.size(), 0x7E00);
        exl3_decode(random.weight, inner.data(), nullptr);
        CHECK(inner == expected_inner);
        CHECK(relative_error(run_exl3(random.weight, x), expected) < kTolerance);
      });
    }
  }
}

TEST_CASE("a row's result does not depend on the rows beside it", "[exl3]") {
  const uint32_t seed = GENERATE(1u, 2u, 3u, 4u, 5u);
  INFO("seed " << seed);
  const int64_t in = 384, out = 128;
  const RandomExl3 random(in, out, 1 + static_cast<int>(seed), kCodebooks[seed % 3], seed);
  const std::vector<float> x = random_floats(300 * in, seed);
  for_each_target([&] {
    std::vector<float> alone;
    for (int64_t row = 0; row < 300; ++row) {
      const std::vector<float> y = run_exl3(random.weight, std::span(x).subspan(row * in, in));
      alone.insert(alone.end(), y.begin(), y.end());
    }
    for (const int64_t rows : {2, 3, 5, 8, 64, 300}) {
      INFO("rows " << rows);
      const int64_t first = (300 - rows) / 2;
      const std::vector<float> y = run_exl3(random.weight, std::span(x).subspan(first * in, rows * in));
      CHECK(bitwise_equal(y, std::span(alone).subspan(first * out, rows * out)));
    }
  });
}

TEST_CASE("the number of threads does not change a bit", "[exl3]") {
  const RandomExl3 random(1152, 640, 3, Codebook::mul1, 7);
  const std::vector<float> x = random_floats(70 * 1152, 8);
  const std::vector<float> expected = run_exl3(random.weight, x);
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (int repeat = 0; repeat < 3; ++repeat) {
      INFO("threads " << threads);
      CHECK(bitwise_equal(run_exl3(random.weight, x, &pool), expected));
    }
  }
}

TEST_CASE("products of different weights in one call give what they give alone", "[exl3]") {
  const int64_t in = 256;
  const RandomExl3 q(in, 384, 4, Codebook::mul1, 1), k(in, 128, 3, Codebook::mcg, 2, true);
  const RandomExl3 wide(640, 256, 5, Codebook::three_inst, 3);
  const std::vector<float> x = random_floats(130 * in, 4);
  const std::vector<float> x_wide = random_floats(9 * 640, 5);
  std::vector<int32_t> chosen(90);
  for (size_t i = 0; i < chosen.size(); ++i) chosen[i] = static_cast<int32_t>((i * 37 + 5) % 130);

  std::vector<float> y_q(130 * 384, NAN), y_k(90 * 128, NAN), y_wide(9 * 256, NAN);
  const std::array products{
      Exl3Product{.weight = &q.weight, .x = x.data(), .rows = 130, .y = y_q.data()},
      Exl3Product{.weight = &wide.weight, .x = x_wide.data(), .rows = 9, .y = y_wide.data()},
      Exl3Product{.weight = &q.weight, .x = x.data(), .rows = 0, .y = nullptr},
      Exl3Product{.weight = &k.weight, .x = x.data(), .input_rows = chosen.data(), .rows = 90, .y = y_k.data()},
  };
  ThreadPool pool(2);
  run_exl3(products, &pool);

  CHECK(bitwise_equal(y_q, run_exl3(q.weight, x)));
  CHECK(bitwise_equal(y_wide, run_exl3(wide.weight, x_wide)));
  const std::vector<float> all_k = run_exl3(k.weight, x);
  for (size_t i = 0; i < chosen.size(); ++i) {
    INFO("row " << i);
    CHECK(bitwise_equal(std::span(y_k).subspan(i * 128, 128), std::span(all_k).subspan(chosen[i] * 128, 128)));
  }
}

TEST_CASE("strides and padding: nothing outside is read or written", "[exl3]") {
  const int64_t in = 256, out = 256, valid_in = 200, valid_out = 131, x_stride = 211, y_stride = 140, rows = 5;
  const RandomExl3 random(in, out, 4, Codebook::mul1, 11, true);
  // Exactly as long as the last row needs: the sanitizers guard what lies behind.
  std::vector<float> x = random_floats((rows - 1) * x_stride + valid_in, 12);
  std::vector<float> padded(rows * in, 0.0f);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < x_stride && r * x_stride + i < static_cast<int64_t>(x.size()); ++i) {
      if (i < valid_in)
        padded[r * in + i] = x[r * x_stride + i];
      else
        x[r * x_stride + i] = NAN;
    }
  }
  const std::vector<float> expected = run_exl3(random.weight, padded);
  std::vector<float> y((rows - 1) * y_stride + valid_out, -1.0f);
  const Exl3Product product{.weight = &random.weight,
                            .x = x.data(),
                            .x_stride = x_stride,
                            .rows = rows,
                            .y = y.data(),
                            .y_stride = y_stride,
                            .valid_in = valid_in,
                            .valid_out = valid_out};
  run_exl3({&product, 1});
  for (int64_t r = 0; r < rows; ++r) {
    INFO("row " << r);
    CHECK(
        bitwise_equal(std::span(y).subspan(r * y_stride, valid_out), std::span(expected).subspan(r * out, valid_out)));
    for (int64_t i = r * y_stride + valid_out; i < std::min<int64_t>((r + 1) * y_stride, y.size()); ++i)
      CHECK(y[i] == -1.0f);
  }
}

TEST_CASE("weights at any even address of a mapped file are read", "[exl3]") {
  for (int bits = 1; bits <= 8; ++bits) {
    const RandomExl3 random(128, 256, bits, Codebook::mul1, 21, true);
    const std::vector<float> x = random_floats(3 * 128, 22);
    const std::vector<float> expected = run_exl3(random.weight, x);
    std::vector<uint16_t> trellis(random.trellis.size() + 1), scales(128 + 256 + 256 + 1);
    std::copy(random.trellis.begin(), random.trellis.end(), trellis.begin() + 1);
    std::copy(random.suh.begin(), random.suh.end(), scales.begin() + 1);
    std::copy(random.svh.begin(), random.svh.end(), scales.begin() + 129);
    std::copy(random.bias.begin(), random.bias.end(), scales.begin() + 385);
    Exl3Weight moved = random.weight;
    moved.trellis = trellis.data() + 1;
    moved.suh = scales.data() + 1;
    moved.svh = scales.data() + 129;
    moved.bias = scales.data() + 385;
    for_each_target([&] { CHECK(relative_error(run_exl3(moved, x), expected) < 1e-6); });
  }
}

TEST_CASE("a workspace that is too small is refused", "[exl3]") {
  const RandomExl3 random(256, 128, 4, Codebook::mul1, 31);
  const std::vector<float> x(256), y(128);
  const Exl3Product product{.weight = &random.weight, .x = x.data(), .rows = 1, .y = const_cast<float*>(y.data())};
  Exl3Workspace workspace(256, 1);
  CHECK_THROWS(exl3_linear({{&product, 1}, workspace.data(), workspace.bytes() - 1, nullptr}));
}

}  // namespace
}  // namespace tandem
