// Trellis tiles -> fp32 values of their exact fp16 weights, in the order of lanes (kernels/detail/exl3_tiles.h).
//
// For one row of x, decoding is the whole cost: at 3 bits a core would have to read 2.6 GB/s to starve, so what counts
// is instructions a weight. For 16 weights of mul1 with AVX-512 VBMI and VNNI, on the two vector ports:
//
//   permute bytes, multishift      2   states, zero-extended, straight from the packed words
//   32-bit multiply                2
//   dot product with ones          1   sum of the four bytes, onto the digits of 2^23
//   fused multiply-add             1   the value before rounding: affine in the sum, exact in fp32
//   multiply, fused multiply-add   2   round to 11 bits without leaving fp32
//   (fused multiply-add            1   with x, in exl3_multiply_cpu.cpp)
//
// Nine operations on two ports: 3.6 weights a cycle at best. Measured on a Sapphire Rapids core with bench_exl3, 4096 x
// 4096, one row: mul1 at 3 bits 6.7e9 weights/s, at 4 bits 6.2e9, at 8 bits 4.7e9; mcg at 3 bits 5.0e9. AVX2 takes 14
// operations for 8 weights on three ports and reaches 2.6e9. Decoded tiles pass through the first-level cache: stores
// and loads use other ports, so this costs nothing and lets one decoder serve any number of rows.
//
// Not taken:
//   - Integer dot products of x in three 8-bit digits with the bytes of state * multiplier: three operations instead of
//     six, but the weights are fp16-rounded, and the rounding (up to 2^-10, 3e-4 of a weight in the mean) must come
//     from somewhere: it is no function of the bytes one by one.
//   - fp16 conversion instructions for the rounding: four operations instead of two (each is a shuffle besides).
//   - Tables: 128 KiB by state do not fit the first-level cache, 4 KiB by byte sum do, but a gather of 16 costs as much
//     as all of the above.
//   - 16-bit multiplies (low, high, low, add) for twice as many states each: the unpacking eats what they save.

#include "kernels/detail/exl3_state_tables.h"
#include "kernels/detail/exl3_tiles.h"

#define HWY_WANT_AVX3_DL 1
#include "kernels/detail/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/exl3_decode_cpu.cpp"
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tandem::detail {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::CappedTag<float, kLanes>;
using U32 = hn::RebindToUnsigned<F32>;
using I32 = hn::RebindToSigned<F32>;
using VecF32 = hn::Vec<F32>;
using VecU32 = hn::Vec<U32>;
constexpr int kVectorLanes = static_cast<int>(hn::MaxLanes(F32()));

// ---- States: one vector of lanes [first_lane, first_lane + kVectorLanes) of a group, zero-extended to 32 bits ----

#if HWY_TARGET <= HWY_AVX3_DL

template <int kBits>
class States {
 public:
  States(int /*first_lane*/, int parity)
      : shuffle_(_mm512_load_si512(kByteTables<kBits>[parity].shuffle.data())),
        shift_(_mm512_load_si512(kByteTables<kBits>[parity].shift.data())) {}

  HWY_INLINE VecU32 operator()(const uint32_t* window) const {
    const __m512i bytes = _mm512_permutexvar_epi8(shuffle_, _mm512_loadu_si512(window));
    return VecU32{_mm512_maskz_multishift_epi64_epi8(0x3333333333333333, shift_, bytes)};
  }

 private:
  __m512i shuffle_;
  __m512i shift_;
};

#elif HWY_TARGET == HWY_AVX3

template <int kBits>
class States {
 public:
  States(int /*first_lane*/, int parity)
      : shuffle_(_mm512_load_si512(kWordTables<kBits>[parity].shuffle.data())),
        shift_(hn::Load(U32(), kWordTables<kBits>[parity].shift.data())) {}

  HWY_INLINE VecU32 operator()(const uint32_t* window) const {
    const VecU32 words{_mm512_permutexvar_epi16(shuffle_, _mm512_loadu_si512(window))};
    return hn::And(words >> shift_, hn::Set(U32(), 0xFFFF));
  }

 private:
  __m512i shuffle_;
  VecU32 shift_;
};

#elif HWY_TARGET == HWY_SCALAR

template <int kBits>
class States {
 public:
  States(int first_lane, int parity) : start_(state_start(kBits, first_lane, parity)) {}

  HWY_INLINE VecU32 operator()(const uint32_t* window) const {
    const uint64_t words = uint64_t{window[start_ / 32]} << 32 | window[start_ / 32 + 1];
    return hn::Set(U32(), static_cast<uint32_t>(words >> (48 - start_ % 32)) & 0xFFFF);
  }

 private:
  int start_;
};

#else

template <int kBits>
class States {
 public:
  States(int first_lane, int parity)
      : offset_(kBlockTables<kBits>[parity].offset.data() + first_lane / 4),
        shuffle_(
            hn::LoadU(hn::Repartition<uint8_t, U32>(), kBlockTables<kBits>[parity].shuffle.data() + first_lane * 4)),
        shift_(hn::LoadU(U32(), kBlockTables<kBits>[parity].shift.data() + first_lane)) {}

  HWY_INLINE VecU32 operator()(const uint32_t* window) const {
    const auto bytes = hn::BitCast(hn::Repartition<uint8_t, U32>(), load_blocks(window));
    const VecU32 words = hn::BitCast(U32(), hn::TableLookupBytes(bytes, shuffle_));
    return hn::And(words >> shift_, hn::Set(U32(), 0xFFFF));
  }

 private:
  HWY_INLINE VecU32 load_blocks(const uint32_t* window) const {
    const hn::FixedTag<uint32_t, 4> block;
#if HWY_TARGET == HWY_AVX2
    return hn::Combine(U32(), hn::LoadU(block, window + offset_[1] / 4), hn::LoadU(block, window + offset_[0] / 4));
#else
    static_assert(kVectorLanes == 4);
    return hn::LoadU(block, window + offset_[0] / 4);
#endif
  }

  const int* offset_;
  hn::Vec<hn::Repartition<uint8_t, U32>> shuffle_;
  VecU32 shift_;
};

#endif

// ---- State -> value ----

/// Rounds to 11 significant bits, ties to even: 8193 v, rounded to fp32's 24 bits, is 8192 v plus v rounded to the
/// eleven bits that are left. Inputs are in the range of normal fp16 or exact; a test goes through all 65,536 states.
HWY_INLINE VecF32 round_to_fp16(VecF32 v) {
  const F32 d;
  return hn::MulAdd(v, hn::Set(d, -8192.0f), hn::Mul(v, hn::Set(d, 8193.0f)));
}

constexpr float kMul1Scale = 0x1.BB8p-8f;                       // fp16 0x1EEE
constexpr float kMul1Offset = 1024 * kMul1Scale - 10.3828125f;  // + fp16 0xC931

/// The value of `mul1` before its rounding, from x = state * multiplier: affine in the sum of x's bytes, exact in fp32.
HWY_INLINE VecF32 mul1_affine(VecU32 x) {
  const F32 d;
#if HWY_TARGET <= HWY_AVX3_DL
  // The sum is added to the digits of 2^23; scale and offset undo that in one exact multiply-add.
  __m512i sum = _mm512_set1_epi32(0x4B000000);
  // As an instruction, because Highway 1.0.3 does not name AVX512-VNNI to the compiler though this target implies it.
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x.raw), "v"(_mm512_set1_epi32(0x01010101)));
  const VecF32 shifted{_mm512_castsi512_ps(sum)};
  return hn::MulAdd(shifted, hn::Set(d, kMul1Scale), hn::Set(d, kMul1Offset - 0x1p23f * kMul1Scale));
#else
#if HWY_TARGET == HWY_AVX3
  const __m512i pairs = _mm512_maddubs_epi16(x.raw, _mm512_set1_epi8(1));
  const hn::Vec<I32> sum{_mm512_madd_epi16(pairs, _mm512_set1_epi16(1))};
#elif HWY_TARGET == HWY_AVX2
  const __m256i pairs = _mm256_maddubs_epi16(x.raw, _mm256_set1_epi8(1));
  const hn::Vec<I32> sum{_mm256_madd_epi16(pairs, _mm256_set1_epi16(1))};
#elif HWY_TARGET == HWY_NEON && HWY_ARCH_ARM_A64
  const hn::Vec<I32> sum{vreinterpretq_s32_u32(vpaddlq_u16(vpaddlq_u8(vreinterpretq_u8_u32(x.raw))))};
#else
  const VecU32 even_bytes = hn::Set(U32(), 0x00FF00FF);
  const VecU32 pairs = hn::And(x, even_bytes) + hn::And(hn::ShiftRight<8>(x), even_bytes);
  const hn::Vec<I32> sum = hn::BitCast(I32(), hn::And(pairs + hn::ShiftRight<16>(pairs), hn::Set(U32(), 0xFFFF)));
#endif
  return hn::MulAdd(hn::ConvertTo(d, sum), hn::Set(d, kMul1Scale), hn::Set(d, kMul1Offset));
#endif
}

/// fp16((x & 0x8FFF) ^ 0x3B60) of the upper half of x, as fp32: masked, moved to fp32's places and xored there with
/// the same pattern and the difference of the exponents' biases.
HWY_INLINE VecF32 masked_half(VecU32 x) {
  const hn::Vec<I32> moved = hn::ShiftRight<3>(hn::BitCast(I32(), x));
  const VecU32 masked = hn::And(hn::BitCast(U32(), moved), hn::Set(U32(), 0x81FFE000));
  return hn::BitCast(F32(), hn::Xor(masked, hn::Set(U32(), 0x3F6C0000)));
}

template <Codebook kCodebook>
HWY_INLINE VecF32 value_of(VecU32 states) {
  const U32 d;
  if constexpr (kCodebook == Codebook::mul1) {
    return round_to_fp16(mul1_affine(states * hn::Set(d, 0x83DCD12Du)));
  } else {
    VecU32 x;
    if constexpr (kCodebook == Codebook::mcg) {
      x = states * hn::Set(d, 0xCBAC1FEDu);
    } else {
      x = states * hn::Set(d, 89226354u) + hn::Set(d, 64248484u);
    }
    return round_to_fp16(masked_half(hn::ShiftLeft<16>(x)) + masked_half(x));
  }
}

// ---- Tiles ----

/// A tile's words with the last one repeated in front, so that the window of the first group wraps around the ring.
template <int kBits>
void copy_to_ring(const uint16_t* tile, uint32_t* ring) {
  const hn::CappedTag<uint8_t, 32> d;  // as bytes: a mapped file aligns nothing
  constexpr int64_t kStep = hn::MaxLanes(d);
  const auto* bytes = reinterpret_cast<const uint8_t*>(tile);
  for (int64_t i = 0; i < 32 * kBits; i += kStep) {
    hn::StoreU(hn::LoadU(d, bytes + i), d, reinterpret_cast<uint8_t*>(ring + 1) + i);
  }
  ring[0] = ring[8 * kBits];
}

template <int kBits, Codebook kCodebook>
void decode_column(const uint16_t* tile, int64_t stride, int64_t count, uint32_t* rings, float* lanes) {
  const F32 d;
  for (int64_t t = 0; t < count; ++t) copy_to_ring<kBits>(tile + t * stride, rings + t * kRingWords);
  for (int parity = 0; parity < 2; ++parity) {
    for (int lane = 0; lane < kLanes; lane += kVectorLanes) {
      const States<kBits> states(lane, parity);
      for (int64_t t = 0; t < count; ++t) {
        const uint32_t* ring = rings + t * kRingWords;
        float* out = lanes + t * kTileFloats + parity * kLanes + lane;
        for (int64_t g = 0; g < kGroups; ++g) {
          hn::Store(value_of<kCodebook>(states(ring + g * kBits)), d, out + g * 2 * kLanes);
        }
      }
    }
  }
}

using DecodeColumn = void (*)(const uint16_t*, int64_t, int64_t, uint32_t*, float*);

template <Codebook kCodebook>
DecodeColumn column_decoder(int bits) {
  constexpr DecodeColumn kDecoders[] = {
      decode_column<1, kCodebook>, decode_column<2, kCodebook>, decode_column<3, kCodebook>,
      decode_column<4, kCodebook>, decode_column<5, kCodebook>, decode_column<6, kCodebook>,
      decode_column<7, kCodebook>, decode_column<8, kCodebook>,
  };
  return kDecoders[bits - 1];
}

void decode(const uint16_t* tile, int64_t stride, int64_t count, int bits, Codebook codebook, uint32_t* rings,
            float* lanes) {
  const DecodeColumn decoder = codebook == Codebook::mul1  ? column_decoder<Codebook::mul1>(bits)
                               : codebook == Codebook::mcg ? column_decoder<Codebook::mcg>(bits)
                                                           : column_decoder<Codebook::three_inst>(bits);
  decoder(tile, stride, count, rings, lanes);
}

}  // namespace

void decode_tiles_target(const uint16_t* tile, int64_t stride, int64_t count, int bits, Codebook codebook,
                         uint32_t* rings, float* lanes) {
  decode(tile, stride, count, bits, codebook, rings, lanes);
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::detail
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::detail {

HWY_EXPORT(decode_tiles_target);

void decode_tiles(const uint16_t* tile, int64_t stride, int64_t count, int bits, Codebook codebook, uint32_t* rings,
                  float* lanes) {
  HWY_DYNAMIC_DISPATCH(decode_tiles_target)(tile, stride, count, bits, codebook, rings, lanes);
}

}  // namespace tandem::detail
#endif
