// How EXL3 products are cut into passes and tasks. The inner loops are in exl3_decode_cpu.cpp, exl3_multiply_cpu.cpp.
//
// A pass takes segments (rows of one product) until they have kExl3RowsPerPass rows. First all their rows are rotated
// into the order of lanes; then one task per (segment, band of 128 outputs) walks down the inner dimension, decodes a
// block of tiles into the first-level cache and multiplies all rows of the segment with it. So a tile is decoded once
// per pass, and a band's sums belong to one task, whose order of additions does not depend on anything else.

#include <algorithm>
#include <array>

#include "kernels/detail/check.h"
#include "kernels/detail/exl3_tiles.h"
#include "kernels/detail/fp16.h"
#include "kernels/detail/parallel.h"
#include "kernels/exl3.h"
#include "kernels/thread_pool.h"

namespace tandem {
namespace {

using namespace detail;

/// Scratch of one thread.
struct Scratch {
  alignas(64) float lanes[kBlockFloats];
  alignas(64) uint32_t rings[kBlockTiles * kRingWords];
  alignas(64) float sums[kExl3RowsPerPass * kBandTiles * kSumFloats];
};

/// Some rows of a product, with their place in the pass.
struct Segment {
  const Exl3Product* product;
  int64_t first_row;
  int64_t rows;
  float* inputs;         // (rows, in / 16, kInputFloats)
  int64_t first_rotate;  // number of its first task in either loop
  int64_t first_band;
};

int64_t tile_rows(const Exl3Weight& weight) {
  return weight.in_features / kTileSide;
}
int64_t input_stride(const Exl3Weight& weight) {
  return tile_rows(weight) * kInputFloats;
}

/// Inputs that one task rotates: short enough to spread a single row over the threads.
constexpr int64_t kRotateBands = 8;

int64_t rotate_tasks(const Exl3Weight& weight) {
  return ceil_div(weight.in_features / kBand, kRotateBands);
}

void rotate_task(const Segment& segment, int64_t task) {
  const Exl3Product& product = *segment.product;
  const Exl3Weight& weight = *product.weight;
  const int64_t tasks = rotate_tasks(weight);
  const int64_t row = task / tasks;
  const int64_t first_band = task % tasks * kRotateBands;
  const int64_t last_band = std::min(first_band + kRotateBands, weight.in_features / kBand);

  const int64_t valid_in = product.valid_in != 0 ? product.valid_in : weight.in_features;
  const int64_t product_row = segment.first_row + row;
  const int64_t input_row = product.input_rows != nullptr ? product.input_rows[product_row] : product_row;
  const float* x = product.x + input_row * stride_or(product.x_stride, valid_in);
  float* inputs = segment.inputs + row * input_stride(weight);
  for (int64_t band = first_band; band < last_band; ++band) {
    const int64_t valid = std::clamp<int64_t>(valid_in - band * kBand, 0, kBand);
    rotate_inputs(x + band * kBand, valid, weight.suh + band * kBand, inputs + band * kBandTiles * kInputFloats);
  }
}

/// A band is a narrow strip: each of its rows of tiles lies on another page, out of reach of a processor's own
/// prefetchers. Asks for a share of the rows [first_row, last_row): part `part` of kBandTiles.
void prefetch_strip(const uint16_t* first_tile, int64_t stride, int64_t strip_words, int64_t first_row,
                    int64_t last_row, int64_t part) {
  constexpr int64_t kLineWords = 32;
  for (int64_t row = first_row + part; row < last_row; row += kBandTiles) {
    for (int64_t word = 0; word < strip_words; word += kLineWords) {
      __builtin_prefetch(first_tile + row * stride + word);
    }
  }
}

void band_task(const Segment& segment, int64_t band, Scratch& scratch) {
  const Exl3Product& product = *segment.product;
  const Exl3Weight& weight = *product.weight;
  const int64_t tile_words = kTileSide * weight.bits;
  const int64_t stride = weight.out_features / kTileSide * tile_words;
  constexpr int64_t kSumStride = kBandTiles * kSumFloats;

  const uint16_t* strip = weight.trellis + band * kBandTiles * tile_words;
  for (int64_t kt = 0; kt < tile_rows(weight); kt += kBlockTiles) {
    const int64_t count = std::min(kBlockTiles, tile_rows(weight) - kt);
    const int64_t next_end = std::min(kt + 2 * kBlockTiles, tile_rows(weight));
    for (int64_t nt = 0; nt < kBandTiles; ++nt) {
      prefetch_strip(strip, stride, kBandTiles * tile_words, kt + kBlockTiles, next_end, nt);
      decode_tiles(strip + kt * stride + nt * tile_words, stride, count, weight.bits, weight.codebook, scratch.rings,
                   scratch.lanes);
      multiply_tiles(segment.inputs + kt * kInputFloats, input_stride(weight), segment.rows, scratch.lanes, count,
                     scratch.sums + nt * kSumFloats, kSumStride, kt != 0);
    }
  }

  const int64_t valid_out = product.valid_out != 0 ? product.valid_out : weight.out_features;
  const int64_t first = band * kBand;
  const int64_t valid = std::clamp<int64_t>(valid_out - first, 0, kBand);
  const uint16_t* bias = weight.bias != nullptr ? weight.bias + first : nullptr;
  for (int64_t row = 0; row < segment.rows; ++row) {
    float* y = product.y + (segment.first_row + row) * stride_or(product.y_stride, valid_out) + first;
    rotate_outputs(scratch.sums + row * kSumStride, weight.svh + first, bias, valid, y);
  }
}

/// The segments of one pass, filled until they have kExl3RowsPerPass rows.
class Pass {
 public:
  Pass(float* inputs, Scratch* scratch, ThreadPool* pool) : inputs_(inputs), scratch_(scratch), pool_(pool) {}

  void add(const Exl3Product& product) {
    for (int64_t row = 0; row < product.rows;) {
      const int64_t rows = std::min(product.rows - row, kExl3RowsPerPass - rows_);
      segments_[count_++] = {&product, row, rows, inputs_ + used_floats_, rotate_tasks_, bands_};
      used_floats_ += rows * input_stride(*product.weight);
      rotate_tasks_ += rows * rotate_tasks(*product.weight);
      bands_ += product.weight->out_features / kBand;
      rows_ += rows;
      row += rows;
      if (rows_ == kExl3RowsPerPass) run();
    }
  }

  void run() {
    parallel_tasks(pool_, rotate_tasks_, [this](int64_t task, int) {
      const Segment& segment = find(task, &Segment::first_rotate);
      rotate_task(segment, task - segment.first_rotate);
    });
    parallel_tasks(pool_, bands_, [this](int64_t task, int thread) {
      const Segment& segment = find(task, &Segment::first_band);
      band_task(segment, task - segment.first_band, scratch_[thread]);
    });
    count_ = 0;
    rows_ = used_floats_ = rotate_tasks_ = bands_ = 0;
  }

 private:
  /// The last segment whose first task is not after `task`.
  const Segment& find(int64_t task, int64_t Segment::*first) const {
    const Segment* end = segments_.data() + count_;
    return *(std::upper_bound(segments_.data(), end, task,
                              [first](int64_t t, const Segment& segment) { return t < segment.*first; }) -
             1);
  }

  float* inputs_;
  Scratch* scratch_;
  ThreadPool* pool_;
  std::array<Segment, kExl3RowsPerPass> segments_;  // each has a row at least
  int64_t count_ = 0;
  int64_t rows_ = 0;
  int64_t used_floats_ = 0;
  int64_t rotate_tasks_ = 0;
  int64_t bands_ = 0;
};

}  // namespace

int64_t exl3_workspace_bytes(int64_t max_in_features, int threads) {
  const int64_t input_floats = kExl3RowsPerPass * max_in_features / kTileSide * kInputFloats;
  return static_cast<int64_t>(sizeof(Scratch)) * std::max(threads, 1) +
         input_floats * static_cast<int64_t>(sizeof(float));
}

void exl3_linear(const Exl3LinearArgs& args) {
  const int threads = threads_of(args.pool);
  int64_t max_in_features = 0;
  for (const Exl3Product& product : args.products) {
    max_in_features = std::max(max_in_features, product.weight->in_features);
  }
  require(args.workspace_bytes >= exl3_workspace_bytes(max_in_features, threads), "exl3_linear",
          "the workspace is too small");
  require(reinterpret_cast<uintptr_t>(args.workspace) % 64 == 0, "exl3_linear", "the workspace is not aligned");
  if (args.products.empty()) return;

  auto* scratch = static_cast<Scratch*>(args.workspace);
  Pass pass(reinterpret_cast<float*>(scratch + threads), scratch, args.pool);
  for (const Exl3Product& product : args.products) pass.add(product);
  pass.run();
}

void exl3_decode(const Exl3Weight& weight, uint16_t* inner, ThreadPool* pool) {
  const int64_t tile_columns = weight.out_features / kTileSide;
  const int64_t tile_words = kTileSide * weight.bits;
  parallel_tasks(pool, tile_rows(weight), [&](int64_t kt, int) {
    alignas(64) std::array<float, kTileFloats> lanes;
    alignas(64) std::array<uint32_t, kRingWords> ring;
    for (int64_t nt = 0; nt < tile_columns; ++nt) {
      const uint16_t* tile = weight.trellis + (kt * tile_columns + nt) * tile_words;
      decode_tiles(tile, 0, 1, weight.bits, weight.codebook, ring.data(), lanes.data());
      uint16_t* corner = inner + kt * kTileSide * weight.out_features + nt * kTileSide;
      for (int i = 0; i < kTileFloats; ++i) {
        const int group = i / (2 * kLanes);
        const int parity = i / kLanes % 2;
        const int lane = i % kLanes;
        corner[(row_of_lane(lane) + parity) * weight.out_features + column_of_lane(lane) + group] =
            float_to_fp16(lanes[i]);
      }
    }
  });
}

}  // namespace tandem
