#include "runtime/cli/score.h"

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/logits.h"
#include "runtime/comm/communicator.h"
#include "runtime/common/error.h"
#include "runtime/common/file.h"
#include "runtime/common/safetensors.h"
#include "runtime/common/units.h"

namespace tandem {
namespace {

constexpr int64_t kMaxTokensFileBytes = int64_t{1} << 30;
constexpr int64_t kMaxSequenceBytes = int64_t{4} << 30;  // of one sequence's results, which are held in memory

std::vector<int32_t> parse_line(std::string_view line, int64_t vocab_size, int64_t max_tokens,
                                const std::string& where) {
  const auto refuse = [&](const std::string& what) -> Error {
    return Error(ErrorKind::usage, what, where, "write one object a line: {\"tokens\": [1, 2, 3]}");
  };
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) throw refuse("the line is not JSON");
  if (!json.is_object() || json.size() != 1 || !json.contains("tokens") || !json["tokens"].is_array()) {
    throw refuse("the line is not an object with a list `tokens` and nothing else");
  }
  const nlohmann::json& list = json["tokens"];
  if (list.empty()) throw refuse("the list of tokens is empty");
  if (static_cast<int64_t>(list.size()) > max_tokens) {
    throw refuse("the sequence has " + std::to_string(list.size()) + " tokens, the model's window is " +
                 std::to_string(max_tokens));
  }
  std::vector<int32_t> tokens;
  tokens.reserve(list.size());
  for (const nlohmann::json& item : list) {
    const std::string place = "token " + std::to_string(tokens.size()) + " is ";
    if (!item.is_number_integer()) throw refuse(place + printable(item.dump(), 64) + ", expected a whole number");
    const bool fits = item.is_number_unsigned() ? item.get<uint64_t>() < static_cast<uint64_t>(vocab_size) : false;
    if (!fits) {
      throw refuse(place + item.dump() + ", expected 0 to " + std::to_string(vocab_size - 1));
    }
    tokens.push_back(item.get<int32_t>());
  }
  return tokens;
}

/// Rank 0's decisions for all ranks: what to run, then the sequences themselves.
std::vector<std::vector<int32_t>> share_sequences(Communicator& communicator,
                                                  std::vector<std::vector<int32_t>> sequences, bool& logits,
                                                  bool& mtp) {
  if (communicator.world_size() == 1) return sequences;
  std::array<int64_t, 3> head{static_cast<int64_t>(sequences.size()), logits, mtp};
  communicator.broadcast(0, head.data(), sizeof head);
  logits = head[1] != 0;
  mtp = head[2] != 0;
  sequences.resize(static_cast<size_t>(head[0]));
  for (std::vector<int32_t>& tokens : sequences) {
    auto length = static_cast<int64_t>(tokens.size());
    communicator.broadcast(0, &length, sizeof length);
    tokens.resize(static_cast<size_t>(length));
    communicator.broadcast(0, tokens.data(), length * static_cast<int64_t>(sizeof(int32_t)));
  }
  return sequences;
}

/// The results of one sequence.
struct Scores {
  std::vector<float> logprobs;
  std::vector<int32_t> top_ids;
  std::vector<float> top_logprobs;
  std::vector<float> logits;
  std::vector<float> mtp_logits;
};

class Scorer {
 public:
  Scorer(Model& model, const ScoreOptions& options, bool logits, bool mtp)
      : model_(model), options_(options), logits_(logits), mtp_(mtp), state_(model.new_sequence()) {}

  Scores run(std::span<const int32_t> tokens) {
    Scores scores;
    state_->clear();
    model_.prefill(*state_, tokens, [&](int64_t first, HiddenRows hidden) {
      if (options_.between_chunks) options_.between_chunks();
      for (int64_t row = 0; row < hidden.rows; row += kRows) {
        const int64_t rows = std::min(kRows, hidden.rows - row);
        add_rows(tokens, first + row, hidden.slice(row, rows), scores);
      }
      if (mtp_) add_mtp_rows(tokens, first, hidden, scores);
      return true;
    });
    return scores;
  }

 private:
  static constexpr int64_t kRows = 32;  // logits of real vocabularies are large

  void add_rows(std::span<const int32_t> tokens, int64_t first, HiddenRows hidden, Scores& scores) {
    const int64_t vocab_size = model_.vocab_size();
    const int64_t rows = hidden.rows;
    block_.resize(static_cast<size_t>(rows * vocab_size));
    model_.logits(hidden, block_);
    if (logits_) scores.logits.insert(scores.logits.end(), block_.begin(), block_.end());

    const LogitRows view{.rows = rows, .vocab_size = vocab_size, .logits = block_.data()};
    const int64_t top = std::min(kScoreTop, vocab_size);
    std::vector<float> normalizers(static_cast<size_t>(rows));
    std::vector<int32_t> ids(static_cast<size_t>(rows * top));
    std::vector<float> values(ids.size());
    log_sum_exp(view, normalizers.data());
    top_logits(view, top, ids.data(), values.data());
    for (int64_t row = 0; row < rows; ++row) {
      const float normalizer = normalizers[static_cast<size_t>(row)];
      const auto next = static_cast<size_t>(first + row + 1);
      if (next < tokens.size()) {
        scores.logprobs.push_back(block_[static_cast<size_t>(row * vocab_size + tokens[next])] - normalizer);
      }
      for (int64_t k = 0; k < top; ++k) {
        scores.top_ids.push_back(ids[static_cast<size_t>(row * top + k)]);
        scores.top_logprobs.push_back(values[static_cast<size_t>(row * top + k)] - normalizer);
      }
    }
  }

  void add_mtp_rows(std::span<const int32_t> tokens, int64_t first, HiddenRows hidden, Scores& scores) {
    const int64_t rows = std::min(hidden.rows, static_cast<int64_t>(tokens.size()) - 1 - first);
    if (rows <= 0) return;
    const auto next = tokens.subspan(static_cast<size_t>(first + 1), static_cast<size_t>(rows));
    const HiddenRows out = model_.mtp_forward(*state_, hidden.slice(0, rows), next);
    const auto at = scores.mtp_logits.size();
    scores.mtp_logits.resize(at + static_cast<size_t>(rows * model_.vocab_size()));
    model_.logits(out, std::span(scores.mtp_logits).subspan(at));
  }

  Model& model_;
  const ScoreOptions& options_;
  bool logits_;
  bool mtp_;
  std::unique_ptr<SequenceState> state_;
  std::vector<float> block_;
};

std::vector<TensorInfo> describe(const std::vector<std::vector<int32_t>>& sequences, int64_t vocab_size, bool logits,
                                 bool mtp) {
  const int64_t top = std::min(kScoreTop, vocab_size);
  std::vector<TensorInfo> tensors;
  for (size_t n = 0; n < sequences.size(); ++n) {
    const auto length = static_cast<int64_t>(sequences[n].size());
    const std::string suffix = "." + std::to_string(n);
    tensors.push_back({.name = "logprobs" + suffix, .dtype = DType::f32, .shape = {length - 1}});
    tensors.push_back({.name = "top_ids" + suffix, .dtype = DType::i32, .shape = {length, top}});
    tensors.push_back({.name = "top_logprobs" + suffix, .dtype = DType::f32, .shape = {length, top}});
    if (logits) tensors.push_back({.name = "logits" + suffix, .dtype = DType::f32, .shape = {length, vocab_size}});
    if (mtp) {
      tensors.push_back({.name = "mtp_logits" + suffix, .dtype = DType::f32, .shape = {length - 1, vocab_size}});
    }
  }
  return tensors;
}

void check_size(const std::vector<std::vector<int32_t>>& sequences, int64_t vocab_size, bool logits, bool mtp) {
  for (size_t n = 0; n < sequences.size(); ++n) {
    const int64_t bytes =
        static_cast<int64_t>(sequences[n].size()) * vocab_size * 4 * ((logits ? 1 : 0) + (mtp ? 1 : 0));
    if (bytes > kMaxSequenceBytes) {
      throw Error(ErrorKind::usage,
                  "logits of sequence " + std::to_string(n) + " take " + format_bytes(bytes) + ", at most " +
                      format_bytes(kMaxSequenceBytes) + " are possible",
                  "--logits, --mtp", "cut the sequence, or leave the logits out");
    }
  }
}

}  // namespace

std::vector<std::vector<int32_t>> read_token_lines(const std::filesystem::path& path, int64_t vocab_size,
                                                   int64_t max_tokens) {
  const std::string text = read_small_file(path, kMaxTokensFileBytes, ErrorKind::usage);
  std::vector<std::vector<int32_t>> sequences;
  std::string_view rest = text;
  for (int64_t line_number = 1; !rest.empty(); ++line_number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    sequences.push_back(parse_line(line, vocab_size, max_tokens, path.string() + ":" + std::to_string(line_number)));
  }
  if (sequences.empty()) {
    throw Error(ErrorKind::usage, "the file has no lines", path.string(),
                "write one object a line: {\"tokens\": [1, 2, 3]}");
  }
  return sequences;
}

ScoreSummary score(Model& model, std::vector<std::vector<int32_t>> sequences, const ScoreOptions& options) {
  Communicator& communicator = model.communicator();
  bool logits = options.logits;
  bool mtp = options.mtp;
  sequences = share_sequences(communicator, std::move(sequences), logits, mtp);
  if (mtp && !model.has_mtp()) {
    throw Error(ErrorKind::usage, "the model has no MTP layer", "--mtp", "leave --mtp out");
  }
  check_size(sequences, model.vocab_size(), logits, mtp);

  std::optional<SafetensorsWriter> writer;
  if (communicator.rank() == 0) {
    writer.emplace(options.out, describe(sequences, model.vocab_size(), logits, mtp));
  }
  ScoreSummary summary;
  Scorer scorer(model, options, logits, mtp);
  for (const std::vector<int32_t>& tokens : sequences) {
    const Scores scores = scorer.run(tokens);
    for (const float logprob : scores.logprobs) summary.negative_log_likelihood -= logprob;
    summary.predicted_tokens += static_cast<int64_t>(scores.logprobs.size());
    ++summary.sequences;
    if (writer) {
      writer->append(std::as_bytes(std::span(scores.logprobs)));
      writer->append(std::as_bytes(std::span(scores.top_ids)));
      writer->append(std::as_bytes(std::span(scores.top_logprobs)));
      writer->append(std::as_bytes(std::span(scores.logits)));
      writer->append(std::as_bytes(std::span(scores.mtp_logits)));
    }
    if (options.progress) options.progress(summary.sequences, static_cast<int64_t>(sequences.size()));
  }
  if (writer) writer->finish();
  if (summary.predicted_tokens > 0) summary.negative_log_likelihood /= static_cast<double>(summary.predicted_tokens);
  return summary;
}

}  // namespace tandem
