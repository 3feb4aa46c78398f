#include "runtime/model/model.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "runtime/comm/communicator.h"
#include "runtime/common/error.h"
#include "runtime/model/ling.h"
#include "runtime/model/operations.h"
#include "runtime/model/sequence_caches.h"
#include "runtime/pack/ling_pack.h"

namespace tandem {
namespace {

std::string number(int64_t value) {
  return std::to_string(value);
}

std::unique_ptr<Operations> make_operations(const ModelOptions& options) {
  if (options.device != "cpu") {
    throw Error(ErrorKind::usage, "this build cannot run on device " + printable(options.device) + ", only on cpu",
                "--device", "use --device cpu");
  }
  return make_cpu_operations(options.threads);
}

int64_t native_window(const LingConfig& config) {
  int64_t window = config.max_position_embeddings;
  if (config.rope_scaling) {
    window = std::max(window,
                      static_cast<int64_t>(config.rope_scaling->factor *
                                           static_cast<double>(config.rope_scaling->original_max_position_embeddings)));
  }
  return window;
}

void check_options(const ModelOptions& options, const LingConfig& config) {
  const int64_t window = native_window(config);
  if (options.context < 1 || options.context > window) {
    throw Error(
        ErrorKind::usage,
        "context of " + number(options.context) + " tokens, expected 1 to " + number(window) + ", the model's window",
        "--context", "use --context " + number(window) + " or less");
  }
  constexpr int64_t kMaxPrefillChunk = 8192;
  if (options.prefill_chunk < kKdaChunkRows || options.prefill_chunk > kMaxPrefillChunk ||
      options.prefill_chunk % kKdaChunkRows != 0) {
    throw Error(ErrorKind::usage, "prefill chunk of " + number(options.prefill_chunk) +
                                      " rows, expected a multiple of " + number(kKdaChunkRows) + " up to " +
                                      number(kMaxPrefillChunk));
  }
}

}  // namespace

// ---- SequenceState ------------------------------------------------------------------------------------------------

SequenceState::SequenceState(std::unique_ptr<SequenceCaches> caches) : caches_(std::move(caches)) {}
SequenceState::~SequenceState() = default;
int64_t SequenceState::length() const {
  return caches_->length;
}
int64_t SequenceState::mtp_length() const {
  return caches_->mtp_length;
}
int64_t SequenceState::context() const {
  return caches_->context;
}
void SequenceState::clear() {
  caches_->clear();
}

// ---- Model --------------------------------------------------------------------------------------------------------

struct Model::Parts {
  Parts(const ModelOptions& given, Communicator& ranks, std::unique_ptr<Operations> device,
        std::unique_ptr<LingPack> weights)
      : options(given),
        communicator(ranks),
        operations(std::move(device)),
        pack(std::move(weights)),
        ling(pack->config(), pack->weights(), *operations, communicator, options) {
    const int64_t local = pack->weights().lm_head.out_features;
    if (communicator.world_size() > 1) {
      gathered_logits = operations->allocate(communicator.world_size() * Ling::kLogitRows * local * 4);
    }
  }

  const LingConfig& config() const { return pack->config(); }
  void check_tokens(std::span<const int32_t> tokens) const;
  /// Adds a sequence's rows to the next pass.
  void add_segment(SequenceCaches& caches, std::span<const int32_t> tokens, int64_t first_position);
  void start_batch(PassKind kind);
  HiddenRows hidden_rows(const SequenceCaches& caches, int64_t rows) const {
    return {caches.hidden, rows, config().hidden_size};
  }

  ModelOptions options;
  Communicator& communicator;
  std::unique_ptr<Operations> operations;
  std::unique_ptr<LingPack> pack;
  Ling ling;
  DeviceBuffer gathered_logits;  // (world_size, Ling::kLogitRows, lm_head.out_features)
  Batch batch;
};

void Model::Parts::check_tokens(std::span<const int32_t> tokens) const {
  for (const int32_t token : tokens) {
    if (token < 0 || token >= config().vocab_size) {
      throw Error(ErrorKind::usage,
                  "token " + number(token) + " is not in the vocabulary of " + number(config().vocab_size));
    }
  }
}

void Model::Parts::start_batch(PassKind kind) {
  batch.kind = kind;
  batch.tokens.clear();
  batch.positions.clear();
  batch.segments.clear();
}

void Model::Parts::add_segment(SequenceCaches& caches, std::span<const int32_t> tokens, int64_t first_position) {
  batch.segments.push_back({&caches, batch.rows(), static_cast<int64_t>(tokens.size())});
  batch.tokens.insert(batch.tokens.end(), tokens.begin(), tokens.end());
  for (size_t i = 0; i < tokens.size(); ++i) batch.positions.push_back(first_position + static_cast<int64_t>(i));
}

namespace {

void check_fits(const SequenceCaches& caches, int64_t new_tokens) {
  if (new_tokens > caches.context - caches.length) {
    throw Error(ErrorKind::usage,
                "the sequence would have " + number(caches.length + new_tokens) + " tokens, the context holds " +
                    number(caches.context),
                "", "use a longer --context or a shorter prompt");
  }
}

}  // namespace

std::unique_ptr<Model> Model::load(const ModelOptions& options, Communicator& communicator) {
  std::unique_ptr<Operations> operations = make_operations(options);
  std::unique_ptr<LingPack> pack =
      LingPack::load({.folder = options.folder,
                      .rank = communicator.rank(),
                      .world_size = communicator.world_size(),
                      .with_mtp = options.with_mtp,
                      .place = [&](std::span<const std::byte> weight) { return operations->place(weight); },
                      .progress = options.progress});
  check_options(options, pack->config());
  return std::unique_ptr<Model>(
      new Model(std::make_unique<Parts>(options, communicator, std::move(operations), std::move(pack))));
}

Model::Model(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Model::~Model() = default;

const LingConfig& Model::config() const {
  return parts_->config();
}
int64_t Model::vocab_size() const {
  return parts_->config().vocab_size;
}
int64_t Model::hidden_size() const {
  return parts_->config().hidden_size;
}
bool Model::has_mtp() const {
  return parts_->pack->weights().mtp.has_value();
}
int Model::threads() const {
  return parts_->operations->threads();
}
const ModelOptions& Model::options() const {
  return parts_->options;
}
Communicator& Model::communicator() const {
  return parts_->communicator;
}
const std::string& Model::pack_hash() const {
  return parts_->pack->pack_hash();
}

ModelMemory Model::memory() const {
  const int world_size = parts_->communicator.world_size();
  return {.weights_mapped = parts_->pack->mapped_bytes(),
          .weights_copied = parts_->pack->copied_bytes(),
          .workspace =
              parts_->ling.activation_bytes() + parts_->operations->workspace_bytes() + parts_->gathered_logits.bytes(),
          .state_per_sequence = sequence_fixed_bytes(config(), options(), world_size, has_mtp()),
          .kv_per_token = sequence_bytes_per_token(config(), options(), has_mtp()),
          .weights_per_decode = parts_->pack->bytes_per_decode()};
}

std::unique_ptr<SequenceState> Model::new_sequence() {
  return std::unique_ptr<SequenceState>(new SequenceState(std::make_unique<SequenceCaches>(
      config(), options(), parts_->communicator.world_size(), has_mtp(), *parts_->operations)));
}

HiddenRows Model::prefill(SequenceState& state, std::span<const int32_t> tokens, const OnChunk& on_chunk) {
  SequenceCaches& caches = *state.caches_;
  if (tokens.empty()) throw Error(ErrorKind::usage, "a prompt of no tokens, expected at least one");
  parts_->check_tokens(tokens);
  check_fits(caches, static_cast<int64_t>(tokens.size()));
  HiddenRows hidden;
  while (!tokens.empty()) {
    const auto chunk = tokens.first(std::min(tokens.size(), static_cast<size_t>(options().prefill_chunk)));
    tokens = tokens.subspan(chunk.size());
    const int64_t first_position = caches.length;
    parts_->start_batch(PassKind::prefill);
    parts_->add_segment(caches, chunk, first_position);
    parts_->ling.trunk(parts_->batch);
    caches.length += static_cast<int64_t>(chunk.size());
    caches.revocable_rows = caches.replay_rows = 0;
    hidden = parts_->hidden_rows(caches, static_cast<int64_t>(chunk.size()));
    if (on_chunk && !on_chunk(first_position, hidden)) break;
  }
  return hidden.last();
}

HiddenRows Model::decode(SequenceState& state, std::span<const int32_t> tokens) {
  const Step step{&state, tokens};
  return decode(std::span(&step, 1)).front();
}

std::vector<HiddenRows> Model::decode(std::span<const Step> steps) {
  parts_->start_batch(PassKind::decode);
  for (const Step& step : steps) {
    SequenceCaches& caches = *step.state->caches_;
    const auto rows = static_cast<int64_t>(step.tokens.size());
    if (rows < 1 || rows > kMaxDecodeRows) {
      throw Error(ErrorKind::usage,
                  "a decode step of " + number(rows) + " tokens, expected 1 to " + number(kMaxDecodeRows));
    }
    parts_->check_tokens(step.tokens);
    check_fits(caches, rows);
    parts_->add_segment(caches, step.tokens, caches.length);
  }
  if (parts_->batch.rows() > options().prefill_chunk) {
    throw Error(ErrorKind::usage, "a decode pass of " + number(parts_->batch.rows()) + " rows, expected at most " +
                                      number(options().prefill_chunk));
  }
  parts_->ling.trunk(parts_->batch);
  std::vector<HiddenRows> hidden;
  for (const Segment& segment : parts_->batch.segments) {
    SequenceCaches& caches = *segment.caches;
    caches.length += segment.rows;
    caches.current_log = 1 - caches.current_log;
    caches.revocable_rows = segment.rows;
    caches.replay_rows = segment.rows > 1 ? segment.rows : 0;  // the state took a single row at once
    hidden.push_back(parts_->hidden_rows(caches, segment.rows));
  }
  return hidden;
}

void Model::rollback(SequenceState& state, int64_t keep) {
  SequenceCaches& caches = *state.caches_;
  const int64_t lowest = caches.revocable_rows == 1 ? 1 : 0;
  if (keep < lowest || keep > caches.revocable_rows) {
    throw Error(ErrorKind::usage, "rollback to " + number(keep) + " rows, expected " + number(lowest) + " to " +
                                      number(caches.revocable_rows));
  }
  caches.length -= caches.revocable_rows - keep;
  if (caches.replay_rows > 0) caches.replay_rows = keep;
  caches.revocable_rows = 0;
}

void Model::logits(HiddenRows hidden, std::span<float> logits) {
  const int64_t vocab_size = this->vocab_size();
  if (static_cast<int64_t>(logits.size()) != hidden.rows * vocab_size) {
    throw Error(ErrorKind::internal, "room for " + number(static_cast<int64_t>(logits.size())) + " logits, expected " +
                                         number(hidden.rows * vocab_size));
  }
  const int64_t local = parts_->pack->weights().lm_head.out_features;
  const int world_size = parts_->communicator.world_size();
  for (int64_t row = 0; row < hidden.rows; row += Ling::kLogitRows) {
    const int64_t rows = std::min(Ling::kLogitRows, hidden.rows - row);
    float* out = logits.data() + row * vocab_size;
    const float* own = parts_->ling.lm_head(hidden.slice(row, rows).data, rows);
    if (world_size == 1) {
      parts_->operations->copy_to_host(out, own, rows * vocab_size * 4);
      continue;
    }
    float* gathered = parts_->gathered_logits.as<float>();
    parts_->communicator.all_gather(own, gathered, rows * local * 4);
    for (int rank = 0; rank < world_size; ++rank) {
      for (int64_t i = 0; i < rows; ++i) {
        parts_->operations->copy_to_host(out + i * vocab_size + rank * local, gathered + (rank * rows + i) * local,
                                         local * 4);
      }
    }
  }
}

std::vector<int32_t> Model::argmax(HiddenRows hidden) {
  struct Best {
    float value = -std::numeric_limits<float>::infinity();
    int32_t token = std::numeric_limits<int32_t>::max();
  };
  const LingWeights& weights = parts_->pack->weights();
  const int64_t tokens =
      options().tokenizer_tokens > 0 ? std::min(options().tokenizer_tokens, vocab_size()) : vocab_size();
  const int64_t local = std::clamp<int64_t>(tokens - weights.lm_head_first_token, 0, weights.lm_head.out_features);
  const auto world_size = static_cast<size_t>(parts_->communicator.world_size());

  std::vector<int32_t> result;
  for (int64_t row = 0; row < hidden.rows; row += Ling::kLogitRows) {
    const int64_t rows = std::min(Ling::kLogitRows, hidden.rows - row);
    const float* own = parts_->ling.lm_head(hidden.slice(row, rows).data, rows);
    std::vector<Best> best(static_cast<size_t>(rows));
    if (local > 0) {
      std::vector<int32_t> ids(static_cast<size_t>(rows));
      std::vector<float> values(static_cast<size_t>(rows));
      parts_->operations->argmax(
          {.rows = rows, .vocab_size = local, .logits = own, .stride = weights.lm_head.out_features}, ids.data(),
          values.data());
      for (size_t i = 0; i < best.size(); ++i) {
        best[i] = {values[i], ids[i] + static_cast<int32_t>(weights.lm_head_first_token)};
      }
    }
    std::vector<Best> of_ranks(best.size() * world_size);
    parts_->communicator.all_gather(best.data(), of_ranks.data(), static_cast<int64_t>(best.size() * sizeof(Best)));
    for (size_t i = 0; i < best.size(); ++i) {
      Best winner = of_ranks[i];
      for (size_t rank = 1; rank < world_size; ++rank) {
        const Best& other = of_ranks[rank * best.size() + i];
        if (other.value > winner.value) winner = other;  // equal: the lower rank has the lower ids
      }
      result.push_back(winner.token);
    }
  }
  return result;
}

HiddenRows Model::mtp_forward(SequenceState& state, HiddenRows hidden, std::span<const int32_t> next_tokens) {
  SequenceCaches& caches = *state.caches_;
  const auto rows = static_cast<int64_t>(next_tokens.size());
  if (!has_mtp()) throw Error(ErrorKind::usage, "the model was loaded without an MTP layer");
  if (rows != hidden.rows || rows < 1 || rows > options().prefill_chunk) {
    throw Error(ErrorKind::usage, "an MTP pass of " + number(rows) + " tokens over " + number(hidden.rows) +
                                      " hidden rows, expected as many, at most " + number(options().prefill_chunk));
  }
  parts_->check_tokens(next_tokens);
  if (rows > caches.context + kMaxDecodeRows - caches.mtp_length) {
    throw Error(ErrorKind::usage, "the MTP layer would have " + number(caches.mtp_length + rows) +
                                      " rows, the context holds " + number(caches.context));
  }
  parts_->start_batch(rows > kMaxDecodeRows ? PassKind::prefill : PassKind::decode);
  parts_->add_segment(caches, next_tokens, caches.mtp_length);
  parts_->ling.mtp(parts_->batch, hidden.data, caches.mtp_hidden);
  caches.mtp_length += rows;
  return {caches.mtp_hidden, rows, config().hidden_size};
}

void Model::mtp_truncate(SequenceState& state, int64_t rows) {
  SequenceCaches& caches = *state.caches_;
  if (rows < 0 || rows > caches.mtp_length) {
    throw Error(ErrorKind::usage,
                "truncating the MTP cache to " + number(rows) + " rows, expected 0 to " + number(caches.mtp_length));
  }
  caches.mtp_length = rows;
}

void Model::copy_to_host(HiddenRows hidden, std::span<float> out) const {
  if (static_cast<int64_t>(out.size()) != hidden.rows * hidden.width) {
    throw Error(ErrorKind::internal, "room for " + number(static_cast<int64_t>(out.size())) + " values, expected " +
                                         number(hidden.rows * hidden.width));
  }
  parts_->operations->copy_to_host(out.data(), hidden.data, hidden.rows * hidden.width * 4);
}

}  // namespace tandem
