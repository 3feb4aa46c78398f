#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/float_format.h"
#include "kernels/thread_pool.h"
#include "tests/catch.h"
#include "tests/kernels/targets.h"

namespace tandem {

/// How far each operation may be from its fp64 form: |got - expected| <= tolerance * max(|expected|, rms(expected)).
namespace tolerance {
inline constexpr double kNorm = 4e-7;
inline constexpr double kRope = 3e-7;
inline constexpr double kShortConv = 1e-6;
inline constexpr double kGate = 5e-7;
inline constexpr double kSwiglu = 5e-7;
inline constexpr double kCombine = 5e-7;
inline constexpr double kKdaStep = 3e-6;
inline constexpr double kKdaChunkedNorm = 1e-6;  // of the whole output, ||got - expected|| / ||expected||
inline constexpr double kMla = 5e-6;
inline constexpr double kRouterWeight = 3e-6;
inline constexpr double kLogSumExp = 3e-7;
}  // namespace tolerance

using Floats = std::vector<float>;

inline constexpr uint64_t kSeeds[] = {1, 2, 3, 4, 5};

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  Floats normal(int64_t count, float scale = 1.0f, float mean = 0.0f) {
    std::normal_distribution<float> distribution(mean, scale);
    Floats values(static_cast<size_t>(count));
    for (float& v : values) v = distribution(engine_);
    return values;
  }
  Floats uniform(int64_t count, float low, float high) {
    std::uniform_real_distribution<float> distribution(low, high);
    Floats values(static_cast<size_t>(count));
    for (float& v : values) v = distribution(engine_);
    return values;
  }
  int64_t integer(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(engine_); }

 private:
  std::mt19937_64 engine_;
};

/// Values in `format`, and what they are after rounding.
struct Stored {
  FloatFormat format;
  std::vector<uint16_t> halves;
  Floats floats;

  const void* data() const {
    return format == FloatFormat::fp32 ? static_cast<const void*>(floats.data()) : halves.data();
  }
};

inline Stored store_as(FloatFormat format, const Floats& values) {
  Stored s{format, {}, values};
  if (format == FloatFormat::fp32) return s;
  for (float& v : s.floats) {
    // Cutting the mantissa suffices for fp16: test values lie well inside its normal range.
    uint16_t half = float_to_bf16(v);
    if (format == FloatFormat::fp16) {
      uint32_t bits;
      std::memcpy(&bits, &v, sizeof bits);
      const int exponent = static_cast<int>(bits >> 23 & 0xFF) - 127 + 15;
      half = exponent <= 0 ? 0 : static_cast<uint16_t>((bits >> 16 & 0x8000) | exponent << 10 | (bits >> 13 & 0x3FF));
    }
    s.halves.push_back(half);
    v = load_float(&half, format, 0);
  }
  return s;
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <typename T>
bool same_bits(const T* a, const T* b, int64_t count) {
  return std::memcmp(a, b, static_cast<size_t>(count) * sizeof(T)) == 0;
}

template <typename Expected>
void check_close(const Floats& got, const std::vector<Expected>& expected, double tolerance) {
  REQUIRE(got.size() == expected.size());
  double squares = 0;
  for (const Expected e : expected) squares += double{e} * e;
  const double rms = std::sqrt(squares / static_cast<double>(expected.size()));
  for (size_t i = 0; i < got.size(); ++i) {
    const double allowed = tolerance * std::max(std::fabs(double{expected[i]}), rms);
    if (std::fabs(double{got[i]} - expected[i]) <= allowed) continue;
    INFO("index " << i << ", got " << got[i] << ", expected " << expected[i] << ", allowed difference " << allowed);
    FAIL("too far from the reference");
  }
}

template <typename Expected>
double relative_norm(const Floats& got, const std::vector<Expected>& expected) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    difference += std::pow(double{got[i]} - expected[i], 2);
    norm += std::pow(double{expected[i]}, 2);
  }
  return std::sqrt(difference / norm);
}

/// Runs `test(seed)` for five seeds on every instruction set.
template <typename Test>
void for_seeds_and_targets(Test&& test) {
  for_each_target([&] {
    for (const uint64_t seed : kSeeds) {
      INFO("seed " << seed);
      test(seed);
    }
  });
}

}  // namespace tandem
