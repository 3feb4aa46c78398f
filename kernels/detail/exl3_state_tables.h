#pragma once

#include <array>
#include <cstdint>

#include "kernels/detail/exl3_tiles.h"

// Where the states of a group lie in the bit stream, as the operands that shuffles and shifts want.
//
// A group of 32 positions takes 32 * bits stream bits, that is `bits` 32-bit words, and its first states reach into
// the word before. So all groups look alike, from one word before their own on: this `window` is what the tables
// describe. Stream bits count from the most significant bit of each word; byte n of the stream is byte n ^ 3 of memory,
// 16-bit word c is word c ^ 1.

namespace tandem::detail {

/// First stream bit, in the window, of the state in lane `lane` of `parity`.
constexpr int state_start(int bits, int lane, int parity) {
  return 32 + (2 * lane + parity + 1) * bits - 16;
}

/// For 128-bit shuffles: block b of four lanes is found in the 16 bytes at `offset[b]`; `shuffle` puts the 32 stream
/// bits that hold each state into its lane, `shift` moves the state to the bottom. The upper 16 bits are left dirty.
struct BlockTable {
  std::array<int, 4> offset{};
  alignas(64) std::array<uint8_t, 64> shuffle{};
  alignas(64) std::array<uint32_t, kLanes> shift{};
};

constexpr BlockTable make_block_table(int bits, int parity) {
  BlockTable table;
  for (int lane = 0; lane < kLanes; ++lane) {
    const int block = lane / 4;
    table.offset[block] = state_start(bits, block * 4, parity) / 32 * 4;
    const int start = state_start(bits, lane, parity) - table.offset[block] * 8;
    for (int i = 0; i < 4; ++i) table.shuffle[lane * 4 + i] = static_cast<uint8_t>((start / 8 + 3 - i) ^ 3);
    table.shift[lane] = static_cast<uint32_t>(16 - start % 8);
  }
  return table;
}

template <int kBits>
inline constexpr std::array<BlockTable, 2> kBlockTables{make_block_table(kBits, 0), make_block_table(kBits, 1)};

/// For a 512-bit shuffle of 16-bit words: the same with the whole window as source.
struct WordTable {
  alignas(64) std::array<uint16_t, 32> shuffle{};
  alignas(64) std::array<uint32_t, kLanes> shift{};
};

constexpr WordTable make_word_table(int bits, int parity) {
  WordTable table;
  for (int lane = 0; lane < kLanes; ++lane) {
    const int start = state_start(bits, lane, parity);
    table.shuffle[lane * 2 + 1] = static_cast<uint16_t>((start / 16) ^ 1);
    table.shuffle[lane * 2] = static_cast<uint16_t>((start / 16 + 1) ^ 1);
    table.shift[lane] = static_cast<uint32_t>(16 - start % 16);
  }
  return table;
}

template <int kBits>
inline constexpr std::array<WordTable, 2> kWordTables{make_word_table(kBits, 0), make_word_table(kBits, 1)};

/// For VBMI: `shuffle` collects the eight stream bytes around two neighbouring lanes' states as one big-endian number,
/// `shift` is where in it each byte of the result starts. Only the lower two bytes of a lane count.
struct ByteTable {
  alignas(64) std::array<uint8_t, 64> shuffle{};
  alignas(64) std::array<uint8_t, 64> shift{};
};

constexpr ByteTable make_byte_table(int bits, int parity) {
  ByteTable table;
  for (int lane = 0; lane < kLanes; ++lane) {
    const int first_byte = state_start(bits, lane & ~1, parity) / 8;
    const int start = state_start(bits, lane, parity) - first_byte * 8;
    const int pair_half = (lane & 1) * 4;
    for (int i = 0; i < 4; ++i) {
      table.shuffle[(lane & ~1) * 4 + pair_half + i] = static_cast<uint8_t>((first_byte + 7 - pair_half - i) ^ 3);
    }
    table.shift[lane * 4] = static_cast<uint8_t>(64 - 16 - start);
    table.shift[lane * 4 + 1] = static_cast<uint8_t>(64 - 8 - start);
  }
  return table;
}

template <int kBits>
inline constexpr std::array<ByteTable, 2> kByteTables{make_byte_table(kBits, 0), make_byte_table(kBits, 1)};

}  // namespace tandem::detail
