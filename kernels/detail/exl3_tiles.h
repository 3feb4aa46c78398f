#pragma once

#include <cstdint>

#include "kernels/exl3.h"

// The two inner loops of an EXL3 product, chosen at run time for the machine's instruction set, and the memory layout
// between them.
//
// Positions 32g .. 32g+31 of a tile (`group` g = 0..7) hold two columns, g and g + 8, of all sixteen rows; even
// positions hold even rows. So a decoded tile lies in memory in the order in which its states come out of the bit
// stream, as `lanes`: [group 8][parity 2][lane 16], where lane i of parity q is position 32g + 2i + q:
//
//   row(i, q) = 2 (i / 4) + 8 (i & 1) + q        column(i, g) = g + 8 ((i >> 1) & 1)
//
// Rows do not depend on the group. Inputs in the same order, [parity 2][lane 16] a tile row, meet all groups of all
// tiles of that row lane by lane: a product is nothing but fused multiply-adds of whole vectors, for one row of x and
// for many alike, and never moves a value between lanes until the end. Each lane then holds its eighth of a column's
// sum, always added up in the same order: this is what makes the results independent of everything else.

namespace tandem::detail {

inline constexpr int64_t kTileSide = 16;
inline constexpr int64_t kLanes = 16;
inline constexpr int64_t kGroups = 8;                               // groups a tile
inline constexpr int64_t kTileFloats = kGroups * 2 * kLanes;        // decoded tile
inline constexpr int64_t kInputFloats = 2 * kLanes;                 // inputs of a tile row
inline constexpr int64_t kSumFloats = kGroups * kLanes;             // sums of a tile column
inline constexpr int64_t kBandTiles = 8;                            // tile columns of 128 outputs
inline constexpr int64_t kBand = kBandTiles * kTileSide;            // one Hadamard block
inline constexpr int64_t kBlockTiles = 16;                          // tile rows decoded in one go
inline constexpr int64_t kBlockFloats = kBlockTiles * kTileFloats;  // 16 KiB: leaves room in a first-level cache
inline constexpr int64_t kRingWords = 8 * 8 + 16;                   // a tile's words and what may be read past them

constexpr int row_of_lane(int lane) {
  return 2 * (lane / 4) + 8 * (lane & 1);
}  // plus parity
constexpr int column_of_lane(int lane) {
  return 8 * ((lane >> 1) & 1);
}  // plus group

/// Decodes a column of tiles.
/// @param tile    first one; the next lies `stride` 16-bit words further
/// @param count   1..kBlockTiles
/// @param rings   scratch, kBlockTiles * kRingWords
/// @param lanes   (count, kTileFloats), 64-byte aligned
void decode_tiles(const uint16_t* tile, int64_t stride, int64_t count, int bits, Codebook codebook, uint32_t* rings,
                  float* lanes);

/// sums[row] (+)= inputs[row] * lanes
/// @param inputs      (rows, input_stride), of which count * kInputFloats count; 64-byte aligned, as all others
/// @param lanes       (count, kTileFloats)
/// @param sums        (rows, sum_stride), of which kSumFloats count
/// @param accumulate  false: sums are set, not added to
void multiply_tiles(const float* inputs, int64_t input_stride, int64_t rows, const float* lanes, int64_t count,
                    float* sums, int64_t sum_stride, bool accumulate);

/// x * suh, rotated (without the factor 1 / sqrt(128)), in the order of lanes.
/// @param x       `valid` values, zeros follow up to 128
/// @param suh     (128) fp16
/// @param inputs  (8, kInputFloats)
void rotate_inputs(const float* x, int64_t valid, const uint16_t* suh, float* inputs);

/// Adds up the lanes of a band's sums, rotates them and scales by svh / 128 (both rotations' factors); adds the bias.
/// @param sums  (kBandTiles, kSumFloats)
/// @param svh   (128) fp16
/// @param bias  (128) fp16, or null
/// @param y     the first `valid` of 128 are written
void rotate_outputs(const float* sums, const uint16_t* svh, const uint16_t* bias, int64_t valid, float* y);

}  // namespace tandem::detail
