// Vectors of up to 16 floats for the kernels: loads and stores with ragged ends, conversions, exp and its relatives.
// Compiled once per instruction set, hence the unusual include guard.
#if defined(TANDEM_KERNELS_DETAIL_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_KERNELS_DETAIL_SIMD_INL_H_
#undef TANDEM_KERNELS_DETAIL_SIMD_INL_H_
#else
#define TANDEM_KERNELS_DETAIL_SIMD_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <limits>

#include "hwy/highway.h"
#include "kernels/detail/simd_targets.h"
#include "kernels/float_format.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::simd::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::CappedTag<float, 16>;
using Vec = hn::Vec<Floats>;
inline constexpr int64_t kLanes = hn::MaxLanes(Floats());

HWY_INLINE Vec zero() {
  return hn::Zero(Floats());
}
HWY_INLINE Vec set(float x) {
  return hn::Set(Floats(), x);
}

HWY_INLINE Vec load(const float* p) {
  return hn::LoadU(Floats(), p);
}
HWY_INLINE void store(Vec v, float* p) {
  hn::StoreU(v, Floats(), p);
}

/// The first `count` values, zeros beyond; nothing beyond is touched.
HWY_INLINE Vec load(const float* p, int64_t count) {
  if (HWY_LIKELY(count >= kLanes)) return load(p);
  HWY_ALIGN float buffer[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) buffer[i] = p[i];
  return hn::Load(Floats(), buffer);
}

HWY_INLINE void store(Vec v, float* p, int64_t count) {
  if (HWY_LIKELY(count >= kLanes)) return store(v, p);
  HWY_ALIGN float buffer[kLanes];
  hn::Store(v, Floats(), buffer);
  for (int64_t i = 0; i < count; ++i) p[i] = buffer[i];
}

/// Converts kLanes values from element `index` on.
template <FloatFormat kFormat>
HWY_INLINE Vec load_as(const void* data, int64_t index) {
  if constexpr (kFormat == FloatFormat::fp32) {
    return load(static_cast<const float*>(data) + index);
  } else if constexpr (kFormat == FloatFormat::bf16) {
    const hn::Rebind<uint16_t, Floats> d16;
    const hn::RebindToUnsigned<Floats> d32;
    const auto bits = hn::LoadU(d16, static_cast<const uint16_t*>(data) + index);
    return hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
  } else {
    const hn::Rebind<uint16_t, Floats> d16;
    const hn::Rebind<hwy::float16_t, Floats> dh;
    return hn::PromoteTo(Floats(), hn::BitCast(dh, hn::LoadU(d16, static_cast<const uint16_t*>(data) + index)));
  }
}

template <FloatFormat kFormat>
HWY_INLINE Vec load_as(const void* data, int64_t index, int64_t count) {
  if (HWY_LIKELY(count >= kLanes)) return load_as<kFormat>(data, index);
  HWY_ALIGN float buffer[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) buffer[i] = load_float(data, kFormat, index + i);
  return hn::Load(Floats(), buffer);
}

/// The sum of all lanes, always in the same order.
HWY_INLINE float sum_lanes(Vec v) {
  return hn::GetLane(hn::SumOfLanes(Floats(), v));
}
HWY_INLINE float max_lanes(Vec v) {
  return hn::GetLane(hn::MaxOfLanes(Floats(), v));
}

/// Whether a product and its sum are rounded once (where the machine can) or each by itself, which has the same bits on
/// every machine.
enum class Rounding { fastest, portable };

template <Rounding kRounding>
HWY_INLINE Vec mul_add(Vec a, Vec b, Vec c) {
  if constexpr (kRounding == Rounding::fastest) return hn::MulAdd(a, b, c);
  return hn::Add(hn::Mul(a, b), c);
}

/// e^x within 2 ulp: x = n ln 2 + r, then a polynomial in r (the one of Cephes' expf) and a scaling by 2^n in two
/// steps, since 2^128 has no place in the exponent. Results below e^-87, next to the smallest normal number, become 0:
/// subnormals are slow, and no sum here notices them. NaN stays NaN.
template <Rounding kRounding = Rounding::fastest>
HWY_INLINE Vec exp(Vec x) {
  const hn::RebindToSigned<Floats> di;
  const auto is_nan = hn::IsNaN(x);
  const auto vanishes = hn::Lt(x, set(-87.0f));
  const Vec in_range = hn::Min(hn::Max(hn::IfThenZeroElse(is_nan, x), set(-87.0f)), set(89.0f));
  const Vec n = hn::Round(hn::Mul(in_range, set(1.44269504088896341f)));
  Vec r = mul_add<kRounding>(n, set(-0.693359375f), in_range);  // exact: the factor has 9 bits
  r = mul_add<kRounding>(n, set(2.12194440e-4f), r);
  Vec p = set(1.9875691500e-4f);
  p = mul_add<kRounding>(p, r, set(1.3981999507e-3f));
  p = mul_add<kRounding>(p, r, set(8.3334519073e-3f));
  p = mul_add<kRounding>(p, r, set(4.1665795894e-2f));
  p = mul_add<kRounding>(p, r, set(1.6666665459e-1f));
  p = mul_add<kRounding>(p, r, set(5.0000001201e-1f));
  p = hn::Add(mul_add<kRounding>(hn::Mul(p, r), r, r), set(1.0f));
  const auto exponent = hn::ConvertTo(di, n);
  const auto half = hn::ShiftRight<1>(exponent);
  const auto power = [](auto d, auto e)
                         HWY_ATTR { return hn::BitCast(Floats(), hn::ShiftLeft<23>(hn::Add(e, hn::Set(d, 127)))); };
  p = hn::Mul(hn::Mul(p, power(di, half)), power(di, hn::Sub(exponent, half)));
  return hn::IfThenElse(is_nan, x, hn::IfThenZeroElse(vanishes, p));
}

template <Rounding kRounding = Rounding::fastest>
HWY_INLINE Vec sigmoid(Vec x) {
  return hn::Div(set(1.0f), hn::Add(set(1.0f), exp<kRounding>(hn::Neg(x))));
}

HWY_INLINE Vec silu(Vec x) {
  return hn::Div(x, hn::Add(set(1.0f), exp(hn::Neg(x))));
}

/// sum(x^2) of n values: four running vectors, then their lanes; an order that n alone decides.
HWY_INLINE float sum_of_squares(const float* x, int64_t n) {
  Vec sums[4] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    TANDEM_UNROLL
    for (int64_t j = 0; j < 4; ++j) {
      const Vec v = load(x + i + j * kLanes);
      sums[j] = hn::MulAdd(v, v, sums[j]);
    }
  }
  for (; i < n; i += kLanes) {
    const Vec v = load(x + i, n - i);
    sums[0] = hn::MulAdd(v, v, sums[0]);
  }
  return sum_lanes(hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3])));
}

}  // namespace tandem::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
