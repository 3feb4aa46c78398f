#include "kernels/dense_linear.h"

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/detail/fp16.h"
#include "kernels/thread_pool.h"
#include "tests/catch.h"
#include "tests/kernels/exl3_fixture.h"
#include "tests/kernels/targets.h"

namespace tandem {
namespace {

/// Random weights in `format`, `offset` bytes into the buffer.
std::vector<char> random_weight(int64_t count, FloatFormat format, uint32_t seed, size_t offset = 0) {
  const std::vector<float> values = random_floats(count, seed);
  const auto bytes = static_cast<size_t>(float_format_bytes(format));
  std::vector<char> raw(offset + values.size() * bytes);
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half = format == FloatFormat::fp16 ? detail::float_to_fp16(values[i]) : float_to_bf16(values[i]);
    const void* source = format == FloatFormat::fp32 ? static_cast<const void*>(&values[i]) : &half;
    std::memcpy(raw.data() + offset + i * bytes, source, bytes);
  }
  return raw;
}

std::vector<float> run(DenseLinearArgs args, int64_t rows, const float* x, bool reference = false) {
  std::vector<float> y(static_cast<size_t>(rows * args.out_features), NAN);
  args.x = x;
  args.rows = rows;
  args.y = y.data();
  reference ? dense_linear_reference(args) : dense_linear(args);
  return y;
}

constexpr std::array kFormats{FloatFormat::fp32, FloatFormat::fp16, FloatFormat::bf16};

TEST_CASE("plain linears of any shape and format agree with the reference", "[dense_linear]") {
  for (const FloatFormat format : kFormats) {
    for (const int64_t in : {1, 7, 64, 531, 1100}) {
      for (const int64_t out : {1, 9, 40}) {
        INFO("format " << static_cast<int>(format) << ", in " << in << ", out " << out);
        const std::vector<char> weight = random_weight(in * out, format, 1);
        const std::vector<float> x = random_floats(7 * in, 2);
        const std::vector<float> bias = random_floats(out, 3);
        const DenseLinearArgs args{
            .weight = weight.data(), .format = format, .in_features = in, .out_features = out, .bias = bias.data()};
        const std::vector<float> expected = run(args, 7, x.data(), true);
        for_each_target([&] { CHECK(relative_error(run(args, 7, x.data()), expected) < 5e-6); });
      }
    }
  }
}

TEST_CASE("a row of a plain linear does not depend on the rows beside it, nor on threads", "[dense_linear]") {
  const int64_t in = 1100, out = 37, rows = 70;
  ThreadPool pool(2);
  for (const FloatFormat format : kFormats) {
    const std::vector<char> weight = random_weight(in * out, format, 4);
    const std::vector<float> x = random_floats(rows * in, 5);
    DenseLinearArgs args{.weight = weight.data(), .format = format, .in_features = in, .out_features = out};
    for_each_target([&] {
      args.pool = &pool;
      const std::vector<float> all = run(args, rows, x.data());
      args.pool = nullptr;
      for (const int64_t count : {1, 2, 3, 5, 8, 64}) {
        INFO("rows " << count);
        const int64_t first = rows - count;
        const std::vector<float> some = run(args, count, x.data() + first * in);
        CHECK(std::memcmp(some.data(), all.data() + first * out, some.size() * sizeof(float)) == 0);
      }
    });
  }
}

TEST_CASE("plain weights at any address, inputs and outputs with strides", "[dense_linear]") {
  const int64_t in = 131, out = 19, rows = 4, x_stride = 140, y_stride = 23;
  for (const FloatFormat format : kFormats) {
    const std::vector<char> aligned = random_weight(in * out, format, 6);
    const std::vector<char> shifted = random_weight(in * out, format, 6, 1);
    const std::vector<float> x = random_floats((rows - 1) * x_stride + in, 7);
    std::vector<float> y((rows - 1) * y_stride + out, -1.0f), expected = y;
    DenseLinearArgs args{.weight = aligned.data(),
                         .format = format,
                         .in_features = in,
                         .out_features = out,
                         .x = x.data(),
                         .x_stride = x_stride,
                         .rows = rows,
                         .y = expected.data(),
                         .y_stride = y_stride};
    dense_linear_reference(args);
    for_each_target([&] {
      args.weight = shifted.data() + 1;
      args.y = y.data();
      dense_linear(args);
      CHECK(relative_error(y, expected) < 5e-6);
      for (int64_t r = 0; r + 1 < rows; ++r) {
        for (int64_t o = out; o < y_stride; ++o) CHECK(y[r * y_stride + o] == -1.0f);
      }
    });
  }
}

}  // namespace
}  // namespace tandem
