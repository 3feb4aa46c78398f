#pragma once

#include <bit>
#include <cstdint>

namespace tandem {

/// How numbers lie in memory: weights as a pack stores them, cached latents. Arithmetic is fp32 throughout.
enum class FloatFormat { fp32, fp16, bf16 };

constexpr int64_t float_format_bytes(FloatFormat format) {
  return format == FloatFormat::fp32 ? 4 : 2;
}

inline float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

/// Rounds to nearest, ties to even; NaN stays NaN.
inline uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

inline float fp16_to_float(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t magnitude = bits & 0x7FFFu;
  if (magnitude >= 0x7C00u) return std::bit_cast<float>(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
  // As an fp32 pattern the same digits stand for 2^-112 times the value, subnormals included.
  return std::bit_cast<float>(sign | magnitude << 13) * 0x1p112f;
}

/// Element `index` of an array of `format`.
inline float load_float(const void* data, FloatFormat format, int64_t index) {
  if (format == FloatFormat::fp32) return static_cast<const float*>(data)[index];
  const uint16_t bits = static_cast<const uint16_t*>(data)[index];
  return format == FloatFormat::bf16 ? bf16_to_float(bits) : fp16_to_float(bits);
}

}  // namespace tandem
