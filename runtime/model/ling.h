#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/common/ling_config.h"
#include "runtime/model/arena.h"
#include "runtime/model/operations.h"
#include "runtime/model/sequence_caches.h"
#include "runtime/pack/ling_weights.h"

namespace tandem {

struct KdaActivations;
struct MlaActivations;

/// How rows go through the layers that look back: many new rows of one prompt, or a few rows that must have the bits of
/// serial decoding.
enum class PassKind { prefill, decode };

/// The rows of one sequence in a pass.
struct Segment {
  SequenceCaches* caches = nullptr;
  int64_t first_row = 0;
  int64_t rows = 0;
};

/// The rows of a pass: those of one sequence after the other.
struct Batch {
  PassKind kind = PassKind::decode;
  std::vector<int32_t> tokens;     // (rows)
  std::vector<int64_t> positions;  // (rows)
  std::vector<Segment> segments;

  int64_t rows() const { return static_cast<int64_t>(tokens.size()); }
};

/// The graph of Ling-3.x (BailingMoeV3ForCausalLM): layers named as in config.json, over the operations of one device.
/// It fills the caches that a Batch names; lengths and rollbacks are Model's business. It owns its activations only.
/// Source: the family's published modeling code and config; KDA: arXiv:2510.26692; MLA: arXiv:2405.04434.
class Ling {
 public:
  /// All references must outlive it. A pass has at most options.prefill_chunk rows.
  Ling(const LingConfig& config, const LingWeights& weights, Operations& operations, Communicator& communicator,
       const ModelOptions& options);

  /// The trunk: embedding, all layers, model.norm. Writes caches and the hidden rows of each segment.
  void trunk(const Batch& batch);

  /// The MTP layer for rows of one sequence.
  /// @param hidden  (rows, hidden_size): the trunk's, or the layer's own output
  /// @param out     (rows, hidden_size); may be hidden
  void mtp(const Batch& batch, const float* hidden, float* out);

  /// This rank's logits of at most kLogitRows rows.
  /// @return  (rows, lm_head.out_features), valid until the next call
  const float* lm_head(const float* hidden, int64_t rows);
  static constexpr int64_t kLogitRows = 32;

  int64_t activation_bytes() const { return memory_.bytes(); }

 private:
  /// x, the residual stream, and what the last half layer wants to add to it: the norm of the next half does the
  /// adding.
  struct Stream {
    float* x = nullptr;      // (rows, hidden_size)
    float* y = nullptr;      // (rows, hidden_size): the normed input of a half layer
    float* delta = nullptr;  // (rows, hidden_size): its output
    bool has_delta = false;
  };

  void embed(const Batch& batch, float* y);
  void layer(const LayerWeights& weights, const Batch& batch, int index, Stream& stream);
  void norm(Stream& stream, const float* weight, int64_t rows, float* y);
  void sum_over_ranks(Stream& stream, int64_t rows);

  void kda(const KdaWeights& weights, const Batch& batch, int index, const float* x, float* out);
  void kda_decode(const Segment& segment, const KdaWeights& weights, KdaCache& cache, const KdaActivations& a);
  void kda_prefill(const Segment& segment, const KdaWeights& weights, KdaCache& cache, const KdaActivations& a);
  /// From raw projections to what the delta rule takes: convolution, norms, gates.
  void kda_inputs(const KdaWeights& weights, const Segment& segment, const KdaActivations& a, const float* history,
                  float* next_history, float* qkv, float* g, float* beta);
  KdaRows kda_rows(const float* qkv, const float* g, const float* beta, int64_t rows) const;

  void mla(const MlaWeights& weights, const Batch& batch, int index, const float* x, float* out);
  void mla_segment(const MlaWeights& weights, const Batch& batch, const Segment& segment, int index,
                   const MlaActivations& a);
  void rotate(const Batch& batch, float* x, int64_t heads, int64_t row_stride, int64_t head_stride);

  void mlp(const DenseMlpWeights& weights, int64_t rows, const float* x, float* out);
  void moe(const MoeWeights& weights, int64_t rows, const float* x, float* out);

  const LingConfig& config_;
  const LingWeights& weights_;
  Operations& operations_;
  Communicator& communicator_;
  const FloatFormat kv_format_;
  const float eps_;
  const int64_t heads_;      ///< of this rank
  const int64_t kda_width_;  ///< of this rank
  const RopeTable rope_table_;

  DeviceBuffer memory_;
  Stream stream_;
  float* mtp_input_ = nullptr;  // (max_rows, 2 * hidden_size)
  float* logits_ = nullptr;     // (kLogitRows, lm_head.out_features)
  Arena half_layer_;            ///< where the activations of a half layer begin
};

}  // namespace tandem
