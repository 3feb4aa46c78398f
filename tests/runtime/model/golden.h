#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/model/model.h"

namespace tandem::test {

/// True values of an example pack, computed in fp64 (tests/data/golden).
struct Golden {
  /// @param bits  "3.64" or "3.12"
  explicit Golden(const std::string& bits);

  static constexpr int64_t kSequences = 16;
  static constexpr int64_t kLength = 512;
  static constexpr int64_t kTop = 8;
  static constexpr int64_t kVocab = 2048;
  static constexpr int64_t kLogitRows = 64;     // of the first two sequences
  static constexpr int64_t kMtpLogitRows = 32;  // likewise

  std::span<const int32_t> sequence(int64_t index) const {
    return std::span(tokens).subspan(static_cast<size_t>(index * kLength), kLength);
  }

  std::vector<int32_t> tokens;        // (kSequences, kLength)
  std::vector<int16_t> top_ids;       // (kSequences, kLength, kTop)
  std::vector<float> top_logprobs;    // likewise
  std::vector<float> logits;          // (2, kLogitRows, kVocab)
  std::vector<float> mtp_logits;      // (2, kMtpLogitRows, kVocab)
  std::vector<float> token_logprobs;  // (kSequences, kLength - 1)

  struct Chat {
    std::vector<int32_t> prompt_tokens;
    std::vector<int32_t> greedy_tokens;
    int64_t mtp_depth = 0;
    int64_t rounds = 0;    ///< of drafted decoding
    int64_t accepted = 0;  ///< drafts
  };
  std::vector<Chat> chats;
};

/// "ling-tiny-exl3-3.64bpw" of examples/packs.
std::string example_pack(const std::string& bits);

/// Runs `body` on every rank of a world, each rank in a thread with its own model, over Gloo when there are several and
/// with rank folders cut from the pack. options.threads 0 stands for 1 here. An error of a rank fails the test.
void with_model(const std::string& pack, int world_size, ModelOptions options,
                const std::function<void(Model&, int rank)>& body);

/// Logits of hidden rows, (rows, vocab).
std::vector<float> logits_of(Model& model, HiddenRows hidden);

/// `count` greedy tokens after the prompt, one row a pass.
std::vector<int32_t> generate_serial(Model& model, std::span<const int32_t> prompt, int64_t count);

struct Drafted {
  std::vector<int32_t> tokens;
  int64_t rounds = 0;
  int64_t accepted = 0;
};

/// The same with `depth` drafts of the MTP layer a round, verified by one pass.
Drafted generate_drafted(Model& model, std::span<const int32_t> prompt, int64_t count, int64_t depth);

}  // namespace tandem::test
