#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "tests/catch.h"
#include "tests/runtime/model/golden.h"

namespace tandem {
namespace {

using test::Drafted;
using test::example_pack;
using test::Golden;
using test::logits_of;
using test::with_model;

// Sanitizers make passes about fifteen times slower: a part of the positions then stands for all.
#if defined(__SANITIZE_ADDRESS__)
constexpr int64_t kSequences = 2;
constexpr size_t kChats = 1;
#else
constexpr int64_t kSequences = Golden::kSequences;
constexpr size_t kChats = 16;
#endif

/// How far a model is from the golden values.
struct Distance {
  int64_t positions = 0;
  int64_t same_top = 0;
  double divergence = 0;  ///< sum of KL over the golden top 8
  std::vector<float> logit_differences;
  std::vector<float> mtp_logit_differences;

  static float quantile(std::vector<float> values, double share) {
    std::sort(values.begin(), values.end());
    return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
  }
};

void compare_position(const Golden& golden, size_t position, std::span<const float> logits, Distance& distance) {
  double sum = 0;
  const float largest = *std::max_element(logits.begin(), logits.end());
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit - largest));
  const double normalizer = largest + std::log(sum);
  const auto top = std::max_element(logits.begin(), logits.end()) - logits.begin();
  ++distance.positions;
  if (top == golden.top_ids[position * Golden::kTop]) ++distance.same_top;
  for (size_t k = 0; k < Golden::kTop; ++k) {
    const double expected = golden.top_logprobs[position * Golden::kTop + k];
    const double got = logits[static_cast<size_t>(golden.top_ids[position * Golden::kTop + k])] - normalizer;
    distance.divergence += std::exp(expected) * (expected - got);
  }
}

void add_differences(std::span<const float> got, std::span<const float> expected, std::vector<float>& differences) {
  for (size_t i = 0; i < got.size(); ++i) differences.push_back(std::fabs(got[i] - expected[i]));
}

Distance measure(Model& model, const Golden& golden, int64_t sequences) {
  Distance distance;
  const std::unique_ptr<SequenceState> state = model.new_sequence();
  for (int64_t sequence = 0; sequence < sequences; ++sequence) {
    state->clear();
    const std::span<const int32_t> tokens = golden.sequence(sequence);
    model.prefill(*state, tokens, [&](int64_t first, HiddenRows hidden) {
      const std::vector<float> logits = logits_of(model, hidden);
      for (int64_t row = 0; row < hidden.rows; ++row) {
        const auto of_row = std::span(logits).subspan(static_cast<size_t>(row * Golden::kVocab), Golden::kVocab);
        compare_position(golden, static_cast<size_t>(sequence * Golden::kLength + first + row), of_row, distance);
      }
      if (sequence < 2 && first == 0) {
        constexpr auto kValues = static_cast<size_t>(Golden::kLogitRows * Golden::kVocab);
        add_differences(std::span(logits).first(kValues),
                        std::span(golden.logits).subspan(static_cast<size_t>(sequence) * kValues, kValues),
                        distance.logit_differences);
        constexpr auto kMtpValues = static_cast<size_t>(Golden::kMtpLogitRows * Golden::kVocab);
        const HiddenRows mtp =
            model.mtp_forward(*state, hidden.slice(0, Golden::kMtpLogitRows), tokens.subspan(1, Golden::kMtpLogitRows));
        add_differences(logits_of(model, mtp),
                        std::span(golden.mtp_logits).subspan(static_cast<size_t>(sequence) * kMtpValues, kMtpValues),
                        distance.mtp_logit_differences);
      }
      return true;
    });
  }
  return distance;
}

void check_distance(const Distance& distance) {
  CHECK(static_cast<double>(distance.same_top) >= 0.999 * static_cast<double>(distance.positions));
  CHECK(distance.divergence / static_cast<double>(distance.positions) <= 1e-5);
  CHECK(Distance::quantile(distance.logit_differences, 0.999) <= 5e-3f);
  CHECK(Distance::quantile(distance.mtp_logit_differences, 0.999) <= 5e-3f);
}

TEST_CASE("logits of both example packs are the reference's, on one rank and on two", "[golden]") {
  const std::string bits = GENERATE("3.64", "3.12");
  const int world_size = GENERATE(1, 2);
  CAPTURE(bits, world_size);
  const Golden golden(bits);
  Distance of_rank[2];
  with_model(example_pack(bits), world_size, {.context = 512},
             [&](Model& model, int rank) { of_rank[rank] = measure(model, golden, kSequences); });
  for (int rank = 0; rank < world_size; ++rank) check_distance(of_rank[rank]);
  if (world_size == 2) {
    CHECK(of_rank[0].divergence == of_rank[1].divergence);
    CHECK(of_rank[0].logit_differences == of_rank[1].logit_differences);
  }
}

TEST_CASE("greedy continuations are the reference's, serial and drafted, on one rank and on two", "[golden]") {
  const std::string bits = GENERATE("3.64", "3.12");
  const int world_size = GENERATE(1, 2);
  CAPTURE(bits, world_size);
  const Golden golden(bits);
  const size_t drafted_chats = world_size == 1 ? kChats : std::min<size_t>(kChats, 4);
  struct Result {
    std::vector<std::vector<int32_t>> serial;
    std::vector<Drafted> drafted;
  } of_rank[2];
  with_model(example_pack(bits), world_size, {.context = 256}, [&](Model& model, int rank) {
    for (size_t i = 0; i < kChats; ++i) {
      const Golden::Chat& chat = golden.chats[i];
      const auto count = static_cast<int64_t>(chat.greedy_tokens.size());
      of_rank[rank].serial.push_back(test::generate_serial(model, chat.prompt_tokens, count));
      if (i < drafted_chats) {
        of_rank[rank].drafted.push_back(test::generate_drafted(model, chat.prompt_tokens, count, chat.mtp_depth));
      }
    }
  });
  for (int rank = 0; rank < world_size; ++rank) {
    for (size_t i = 0; i < kChats; ++i) {
      CAPTURE(rank, i);
      const Golden::Chat& chat = golden.chats[i];
      CHECK(of_rank[rank].serial[i] == chat.greedy_tokens);
      if (i >= drafted_chats) continue;
      CHECK(of_rank[rank].drafted[i].tokens == chat.greedy_tokens);
      CHECK(of_rank[rank].drafted[i].rounds == chat.rounds);
      CHECK(of_rank[rank].drafted[i].accepted == chat.accepted);
    }
  }
}

TEST_CASE("the unquantized model predicts held-out text as well as the reference", "[golden]") {
  const char* pack = std::getenv("TANDEM_BF16_PACK");
  if (!pack) TANDEM_SKIP("TANDEM_BF16_PACK names no unquantized pack");
  const Golden golden("3.64");  // for its tokens
  with_model(pack, 1, {.context = 512}, [&](Model& model, int) {
    const std::unique_ptr<SequenceState> state = model.new_sequence();
    double negative_log_likelihood = 0;
    int64_t predicted = 0;
    for (int64_t sequence = 0; sequence < kSequences; ++sequence) {
      state->clear();
      const std::span<const int32_t> tokens = golden.sequence(sequence);
      model.prefill(*state, tokens, [&](int64_t first, HiddenRows hidden) {
        const std::vector<float> logits = logits_of(model, hidden);
        for (int64_t row = 0; row < hidden.rows && first + row + 1 < Golden::kLength; ++row) {
          const auto of_row = std::span(logits).subspan(static_cast<size_t>(row * Golden::kVocab), Golden::kVocab);
          double sum = 0;
          for (const float logit : of_row) sum += std::exp(static_cast<double>(logit));
          negative_log_likelihood += std::log(sum) - of_row[static_cast<size_t>(tokens[first + row + 1])];
          ++predicted;
        }
        return true;
      });
    }
    CHECK(negative_log_likelihood / static_cast<double>(predicted) == Approx(0.3858).margin(0.001));
  });
}

}  // namespace
}  // namespace tandem
