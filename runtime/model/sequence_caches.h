#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "runtime/common/ling_config.h"
#include "runtime/model/arena.h"
#include "runtime/model/model.h"
#include "runtime/model/operations.h"

namespace tandem {

/// A KDA layer's memory of a sequence.
///
/// A state cannot be taken back by length. So a decode pass of several rows leaves it untouched and logs what its rows
/// feed into it; the next pass first applies the rows that were kept. That leaves the bits of serial decoding, at one
/// read and one write of the state a pass and without a copy of it. Two logs alternate, because a pass replays the old
/// one while it writes the new one.
struct KdaCache {
  struct Log {
    float* raw = nullptr;   // (kMaxDecodeRows, 3 * kda_width), projections before the convolution
    float* qkv = nullptr;   // (kMaxDecodeRows, 3 * kda_width), after convolution and norms
    float* g = nullptr;     // (kMaxDecodeRows, kda_width)
    float* beta = nullptr;  // (kMaxDecodeRows, heads)
  };

  KdaCache(const LingConfig& config, int world_size, Arena& arena);

  float* state;    // (heads, head_dim, head_dim)
  float* history;  // (short_conv_kernel_size - 1, 3 * kda_width), the raw rows before those of the log
  std::array<Log, 2> logs;
};

/// An MLA layer's memory of a sequence. How many rows count is the sequence's or the MTP layer's length.
struct MlaCache {
  MlaCache(const LingConfig& config, const ModelOptions& options, Arena& arena);

  std::byte* latent;    // (context, kv_lora_rank) in the cache's format
  std::byte* rope_key;  // (context, qk_rope_head_dim)
};

/// What stands behind SequenceState.
struct SequenceCaches {
  SequenceCaches(const LingConfig& config, const ModelOptions& options, int world_size, bool with_mtp,
                 Operations& device);

  void clear();

  Operations& operations;
  int64_t context;
  int64_t length = 0;
  int64_t mtp_length = 0;

  int64_t revocable_rows = 0;  ///< of the last decode pass; all counted in `length`
  int64_t replay_rows = 0;     ///< rows of the current log that the KDA states have not taken yet
  int current_log = 0;

  std::vector<std::variant<KdaCache, MlaCache>> layers;
  std::vector<MlaCache> mtp;    ///< one, or none without an MTP layer
  float* hidden = nullptr;      // (prefill_chunk, hidden_size), of the last pass
  float* mtp_hidden = nullptr;  // (prefill_chunk, hidden_size)

  DeviceBuffer fixed_memory;   ///< hidden rows and KDA caches
  DeviceBuffer latent_memory;  ///< MLA caches; pages are taken as rows arrive
};

/// Bytes of a sequence on one rank: the part that does not depend on its length, and the part that does.
int64_t sequence_fixed_bytes(const LingConfig& config, const ModelOptions& options, int world_size, bool with_mtp);
int64_t sequence_bytes_per_token(const LingConfig& config, const ModelOptions& options, bool with_mtp);

}  // namespace tandem
