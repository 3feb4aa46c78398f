#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/common/family.h"
#include "runtime/common/pack.h"
#include "runtime/pack/linear.h"
#include "runtime/pack/ling_weights.h"

namespace tandem {

/// Turns named tensors of one checked pack or rank folder into what kernels take. Owns the copies it makes; the rest
/// stays in the pack's mapping. The pack and the table must outlive it.
class WeightReader {
 public:
  using Place = std::function<const std::byte*(std::span<const std::byte>)>;
  using Progress = std::function<void(double)>;

  WeightReader(const Pack& pack, const ModuleTable& table, int world_size, Place place, Progress progress);

  /// True when the pack stores something under this module name, quantized or plain.
  bool has(const std::string& module) const;

  /// A linear of the table, or a fused one, whose outputs are those of its parts.
  Linear linear(const std::string& module);
  /// A vector or small tensor as fp32.
  const float* vector(const std::string& tensor);
  /// The same, rearranged: `fill` gets the values as stored and writes as many.
  const float* vector(const std::string& tensor, const std::function<void(const float* stored, float* out)>& fill);
  /// Several vectors, one after the other, then rearranged.
  const float* vectors(const std::vector<std::string>& tensors,
                       const std::function<void(const float* stored, float* out)>& fill);
  /// A matrix as it is stored.
  PlainMatrix matrix(const std::string& tensor);

  int64_t mapped_bytes() const { return mapped_bytes_; }
  int64_t copied_bytes() const { return copied_bytes_; }

 private:
  const std::byte* bytes_of(const PackTensor& tensor, int64_t alignment);
  const std::byte* keep_copy(std::span<const std::byte> bytes);
  FloatFormat format_of(const PackTensor& tensor) const;
  std::string where(const PackTensor& tensor) const;
  const uint16_t* signs_as_fp16(const PackTensor& words);
  const uint16_t* bias_as_fp16(const PackTensor& bias);
  Linear exl3_linear(const Exl3Linear& stored, int64_t in_features, int64_t out_features);
  void append_as_fp32(const PackTensor& tensor, std::vector<float>& out);
  const float* keep_floats(std::span<const float> values);
  void report(int64_t bytes);

  const Pack& pack_;
  const ModuleTable& table_;
  int world_size_;
  Place place_;
  Progress progress_;
  std::vector<std::unique_ptr<std::byte[]>> copies_;
  int64_t mapped_bytes_ = 0;
  int64_t copied_bytes_ = 0;
  int64_t read_bytes_ = 0;
  int64_t total_bytes_ = 0;
};

}  // namespace tandem
