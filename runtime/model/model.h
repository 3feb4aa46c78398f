#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tandem {

class Communicator;
struct LingConfig;
struct SequenceCaches;

enum class KvCacheType { fp32, bf16 };

/// The most token rows one decode() pass takes for a sequence: the last token and up to seven drafts.
inline constexpr int64_t kMaxDecodeRows = 8;

struct ModelOptions {
  std::filesystem::path folder;  ///< a whole pack, or with world_size > 1 the folder of this rank
  std::string device = "cpu";
  int64_t context = 4096;  ///< most tokens of one sequence
  KvCacheType kv_cache = KvCacheType::fp32;
  int threads = 0;               ///< 0: one for each core this process may use
  int64_t prefill_chunk = 256;   ///< rows of one prefill pass, a multiple of 64; decides the size of the workspace
  bool with_mtp = true;          ///< false leaves the MTP layer's weights out
  int64_t tokenizer_tokens = 0;  ///< ids from here on are no tokens: argmax skips them. 0: all of vocab_size are
  /// Told how much of the weights is ready, 0..1, while load() runs, on the calling thread.
  std::function<void(double)> progress;
};

/// Bytes of each part, on this rank.
struct ModelMemory {
  int64_t weights_mapped = 0;      ///< read in place from the pack's files
  int64_t weights_copied = 0;      ///< converted or moved to the device on load
  int64_t workspace = 0;           ///< activations of one pass
  int64_t state_per_sequence = 0;  ///< KDA states, convolution tails, rollback log, hidden rows
  int64_t kv_per_token = 0;        ///< MLA latents of trunk and MTP layer
  int64_t weights_per_decode = 0;  ///< bytes of weights that one serial decode step reads
};

/// Rows of `hidden_size` values, row-major, in the memory of the model's device.
struct HiddenRows {
  const float* data = nullptr;
  int64_t rows = 0;
  int64_t width = 0;

  HiddenRows slice(int64_t first, int64_t count) const { return {data + first * width, count, width}; }
  HiddenRows last() const { return slice(rows - 1, 1); }
};

/// All that a model remembers of one token sequence: KDA states and convolution tails, the latent rows of the MLA
/// layers and of the MTP layer. Memory for the latents is reserved for the whole context and taken as rows arrive.
/// Must not outlive its model. Not thread-safe.
class SequenceState {
 public:
  ~SequenceState();
  SequenceState(const SequenceState&) = delete;
  SequenceState& operator=(const SequenceState&) = delete;

  int64_t length() const;      ///< tokens the trunk has taken
  int64_t mtp_length() const;  ///< rows in the MTP layer's cache
  int64_t context() const;     ///< the most length() can become
  void clear();                ///< back to the empty sequence; memory stays

 private:
  friend class Model;
  explicit SequenceState(std::unique_ptr<SequenceCaches> caches);
  std::unique_ptr<SequenceCaches> caches_;
};

/// One rank of a Ling-3.1 model (BailingMoeV3ForCausalLM): weights, workspace, and the passes over them.
///
/// With world_size > 1 every call that takes a SequenceState or hidden rows is collective: all ranks make the same
/// calls with the same tokens in the same order, and all get the same hidden rows and logits, bit for bit.
/// A row's result does not depend on the other rows of a decode() pass, bit for bit.
///
/// One thread at a time; the model brings its own workers. Errors of a call leave the state it worked on unusable until
/// clear(). All throw Error: kind `pack` for what is wrong with the folder, `usage` for arguments out of range,
/// `peer_lost` from the communicator.
class Model {
 public:
  /// Opens, checks and maps the weights. `communicator` gives rank and world size and must outlive the model.
  static std::unique_ptr<Model> load(const ModelOptions& options, Communicator& communicator);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const LingConfig& config() const;
  int64_t vocab_size() const;  ///< width of a row of logits: valid ids only, padding of the head excluded
  int64_t hidden_size() const;
  bool has_mtp() const;
  int threads() const;  ///< that work on a pass, on this rank
  const ModelOptions& options() const;
  ModelMemory memory() const;
  Communicator& communicator() const;
  const std::string& pack_hash() const;  ///< identity of the whole pack

  std::unique_ptr<SequenceState> new_sequence();

  /// Told after each chunk: its first row's position and its hidden rows (valid during the call). It may call
  /// logits, argmax and mtp_forward. False stops the prefill there; every rank must give the same answer.
  using OnChunk = std::function<bool(int64_t first_position, HiddenRows hidden)>;

  /// Appends `tokens` to the sequence in chunks of options().prefill_chunk rows, with the chunked form of KDA and the
  /// expanded form of MLA.
  /// @return  hidden row of the last token taken (after model.norm), valid until the next prefill or decode of `state`
  HiddenRows prefill(SequenceState& state, std::span<const int32_t> tokens, const OnChunk& on_chunk = {});

  /// Appends 1..kMaxDecodeRows tokens, token by token in KDA and absorbed in MLA, so that each row has the bits that
  /// serial decoding gives it. Two and more rows stay revocable: rollback() may follow, before the next pass of
  /// `state`.
  /// @return  a hidden row per token (after model.norm), valid until the next prefill or decode of `state`
  HiddenRows decode(SequenceState& state, std::span<const int32_t> tokens);

  /// One pass over the rows of several sequences, as if decode() had been called for each.
  struct Step {
    SequenceState* state = nullptr;
    std::span<const int32_t> tokens;
  };
  std::vector<HiddenRows> decode(std::span<const Step> steps);

  /// Takes back all but the first `keep` rows of the last decode() of `state`; afterwards the state has the bits of
  /// having decoded only those. At most one rollback a decode(); a pass of one row can only keep it.
  void rollback(SequenceState& state, int64_t keep);

  /// Logits of each row over the whole vocabulary, assembled from all ranks in rank order.
  /// @param logits  host memory, (hidden.rows, vocab_size())
  void logits(HiddenRows hidden, std::span<float> logits);

  /// The most likely token of each row, the lowest id on ties: what logits() would say, but ranks exchange 8 bytes a
  /// row.
  std::vector<int32_t> argmax(HiddenRows hidden);

  /// The MTP layer: row i pairs hidden row i with `next_tokens[i]`, the token after it; rows are appended to the MTP
  /// cache at position mtp_length(). Pass hidden rows of the trunk for certain rows, or the result of the last call to
  /// chain drafts.
  /// @param next_tokens  at most options().prefill_chunk
  /// @return  a row per token; logits() of it foretell the token after `next_tokens[i]`. Valid until the next call for
  ///          `state`; may be its `hidden` then.
  HiddenRows mtp_forward(SequenceState& state, HiddenRows hidden, std::span<const int32_t> next_tokens);

  /// Drops all but the first `rows` rows of the MTP cache.
  void mtp_truncate(SequenceState& state, int64_t rows);

  /// Copies hidden rows to host memory, (hidden.rows, hidden_size()).
  void copy_to_host(HiddenRows hidden, std::span<float> out) const;

 private:
  struct Parts;
  explicit Model(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace tandem
