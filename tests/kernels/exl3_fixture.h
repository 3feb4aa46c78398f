#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/detail/fp16.h"
#include "kernels/exl3.h"
#include "kernels/thread_pool.h"

namespace tandem {

/// A weight of random bits with plausible scales, and the memory it points to.
struct RandomExl3 {
  RandomExl3(int64_t in, int64_t out, int bits, Codebook codebook, uint32_t seed, bool with_bias = false) {
    std::mt19937 random(seed);
    const auto fill = [&](std::vector<uint16_t>& v, int64_t size, auto next) {
      v.resize(static_cast<size_t>(size));
      for (uint16_t& element : v) element = next();
    };
    std::normal_distribution<float> normal;
    fill(trellis, in * out * bits / 16, [&] { return static_cast<uint16_t>(random()); });
    const auto fp16 = [&] { return detail::float_to_fp16(normal(random)); };
    fill(suh, in, fp16);
    fill(svh, out, fp16);
    if (with_bias) fill(bias, out, fp16);
    weight = {trellis.data(), suh.data(), svh.data(), with_bias ? bias.data() : nullptr, in, out, bits, codebook};
  }
  RandomExl3(const RandomExl3&) = delete;

  std::vector<uint16_t> trellis, suh, svh, bias;
  Exl3Weight weight;
};

inline std::vector<float> random_floats(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> v(static_cast<size_t>(count));
  for (float& x : v) x = normal(random);
  return v;
}

/// |got - expected| / |expected|, Euclidean; NaN when anything is NaN.
inline double relative_error(std::span<const float> got, std::span<const float> expected) {
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += (double{got[i]} - expected[i]) * (double{got[i]} - expected[i]);
    norm += double{expected[i]} * expected[i];
  }
  return std::sqrt(difference / norm);
}

/// 64-byte aligned workspace for exl3_linear.
class Exl3Workspace {
 public:
  Exl3Workspace(int64_t max_in_features, int threads)
      : bytes_(exl3_workspace_bytes(max_in_features, threads)), memory_(static_cast<size_t>(bytes_ + 63)) {}

  void* data() { return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory_.data()) + 63) / 64 * 64); }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_;
  std::vector<char> memory_;
};

inline void run_exl3(std::span<const Exl3Product> products, ThreadPool* pool = nullptr) {
  int64_t max_in_features = 0;
  for (const Exl3Product& product : products) max_in_features = std::max(max_in_features, product.weight->in_features);
  Exl3Workspace workspace(max_in_features, pool != nullptr ? pool->threads() : 1);
  exl3_linear({products, workspace.data(), workspace.bytes(), pool});
}

/// Packed rows through one weight.
inline std::vector<float> run_exl3(const Exl3Weight& weight, std::span<const float> x, ThreadPool* pool = nullptr) {
  const int64_t rows = static_cast<int64_t>(x.size()) / weight.in_features;
  std::vector<float> y(static_cast<size_t>(rows * weight.out_features), NAN);
  const Exl3Product product{.weight = &weight, .x = x.data(), .rows = rows, .y = y.data()};
  run_exl3({&product, 1}, pool);
  return y;
}

inline std::vector<float> run_exl3_reference(const Exl3Weight& weight, std::span<const float> x) {
  const int64_t rows = static_cast<int64_t>(x.size()) / weight.in_features;
  std::vector<float> y(static_cast<size_t>(rows * weight.out_features), NAN);
  const Exl3Product product{.weight = &weight, .x = x.data(), .rows = rows, .y = y.data()};
  exl3_linear_reference({.products = {&product, 1}});
  return y;
}

}  // namespace tandem
