#include "runtime/model/model.h"

#include <algorithm>
#include <cstring>

#include "runtime/common/error.h"
#include "runtime/common/ling_config.h"
#include "tests/catch.h"
#include "tests/runtime/model/golden.h"

namespace tandem {
namespace {

using test::example_pack;
using test::Golden;
using test::logits_of;
using test::with_model;

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

std::string refusal(const auto& action, ErrorKind kind) {
  try {
    action();
  } catch (const Error& error) {
    CHECK(error.kind() == kind);
    return error.what();
  }
  return "no error";
}

constexpr size_t kPrompt = 70;   // past a chunk of KDA
constexpr size_t kDecoded = 24;  // divisible by 2, 3, 8

/// Logits of the tokens after the prompt, decoded `rows` at a time.
std::vector<float> decode_in_groups(Model& model, std::span<const int32_t> tokens, size_t rows) {
  const std::unique_ptr<SequenceState> state = model.new_sequence();
  model.prefill(*state, tokens.first(kPrompt));
  std::vector<float> all;
  for (size_t at = kPrompt; at < kPrompt + kDecoded; at += rows) {
    const size_t count = std::min(rows, kPrompt + kDecoded - at);
    const std::vector<float> logits = logits_of(model, model.decode(*state, tokens.subspan(at, count)));
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

TEST_CASE("logits of a row have the same bits however many rows a decode pass has", "[model]") {
  const Golden golden("3.64");
  const auto kv_cache = GENERATE(KvCacheType::fp32, KvCacheType::bf16);
  const int world_size = GENERATE(1, 2);
  CAPTURE(kv_cache, world_size);
  bool all_same[2] = {true, true};
  with_model(example_pack("3.64"), world_size, {.context = 128, .kv_cache = kv_cache}, [&](Model& model, int rank) {
    const std::vector<float> serial = decode_in_groups(model, golden.sequence(0), 1);
    for (const size_t rows : {2, 3, 5, 8}) {
      all_same[rank] = all_same[rank] && same_bits(decode_in_groups(model, golden.sequence(0), rows), serial);
    }
  });
  CHECK(all_same[0]);
  CHECK(all_same[1]);
}

TEST_CASE("a rollback leaves the bits of having decoded only the kept rows", "[model]") {
  const Golden golden("3.12");
  const std::span<const int32_t> tokens = golden.sequence(1);
  with_model(example_pack("3.12"), 1, {.context = 128}, [&](Model& model, int) {
    const std::vector<float> serial = decode_in_groups(model, tokens, 1);
    const std::unique_ptr<SequenceState> state = model.new_sequence();
    model.prefill(*state, tokens.first(kPrompt));
    // Blocks of up to 8 rows whose tail is wrong; 0 to 7 rows of each survive.
    size_t at = kPrompt;
    for (int64_t turn = 0; at < kPrompt + kDecoded; ++turn) {
      const auto keep = static_cast<size_t>(std::min<int64_t>(turn % 8, kPrompt + kDecoded - at));
      std::vector<int32_t> block(tokens.begin() + at, tokens.begin() + at + keep);
      while (block.size() < std::max<size_t>(keep + 1, 2)) block.push_back(7);
      const std::vector<float> logits = logits_of(model, model.decode(*state, block));
      model.rollback(*state, static_cast<int64_t>(keep));
      const size_t width = static_cast<size_t>(model.vocab_size());
      CAPTURE(turn, keep);
      CHECK(same_bits(std::span(logits).first(keep * width),
                      std::span(serial).subspan((at - kPrompt) * width, keep * width)));
      at += keep;
      CHECK(state->length() == static_cast<int64_t>(at));
    }
  });
}

TEST_CASE("a prompt may follow kept and rejected rows", "[model]") {
  const Golden golden("3.64");
  const std::span<const int32_t> tokens = golden.sequence(2);
  with_model(example_pack("3.64"), 1, {.context = 128}, [&](Model& model, int) {
    const auto after = [&](bool with_drafts) {
      const std::unique_ptr<SequenceState> state = model.new_sequence();
      model.prefill(*state, tokens.first(20));
      if (with_drafts) {
        model.decode(*state, std::vector<int32_t>{tokens[20], tokens[21], 5, 6});
        model.rollback(*state, 2);
      } else {
        model.decode(*state, tokens.subspan(20, 1));
        model.decode(*state, tokens.subspan(21, 1));
      }
      return logits_of(model, model.prefill(*state, tokens.subspan(22, 30)));
    };
    CHECK(same_bits(after(true), after(false)));
  });
}

TEST_CASE("sequences that share a pass do not influence each other", "[model]") {
  const Golden golden("3.64");
  with_model(example_pack("3.64"), 1, {.context = 128}, [&](Model& model, int) {
    const auto a = golden.sequence(3);
    const auto b = golden.sequence(4);
    const auto start = [&](std::span<const int32_t> tokens, size_t length) {
      std::unique_ptr<SequenceState> state = model.new_sequence();
      model.prefill(*state, tokens.first(length));
      return state;
    };
    const auto alone_a = start(a, 40);
    const std::vector<float> logits_a = logits_of(model, model.decode(*alone_a, a.subspan(40, 3)));
    const auto alone_b = start(b, 65);
    const std::vector<float> logits_b = logits_of(model, model.decode(*alone_b, b.subspan(65, 1)));

    const auto shared_a = start(a, 40);
    const auto shared_b = start(b, 65);
    const Model::Step steps[] = {{shared_b.get(), b.subspan(65, 1)}, {shared_a.get(), a.subspan(40, 3)}};
    const std::vector<HiddenRows> hidden = model.decode(steps);
    CHECK(same_bits(logits_of(model, hidden[0]), logits_b));
    CHECK(same_bits(logits_of(model, hidden[1]), logits_a));
  });
}

TEST_CASE("a prompt has the same result in one pass and in several", "[model]") {
  const Golden golden("3.64");
  std::vector<std::vector<float>> results;
  for (const int64_t prefill_chunk : {64, 256}) {
    with_model(example_pack("3.64"), 1, {.context = 256, .prefill_chunk = prefill_chunk}, [&](Model& model, int) {
      const std::unique_ptr<SequenceState> state = model.new_sequence();
      results.push_back(logits_of(model, model.prefill(*state, golden.sequence(5).first(200))));
    });
  }
  CHECK(same_bits(results[0], results[1]));
}

TEST_CASE("the number of threads changes no bit", "[model]") {
  const Golden golden("3.64");
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 3}) {
    with_model(example_pack("3.64"), 1, {.context = 128, .threads = threads}, [&](Model& model, int) {
      CHECK(model.threads() == threads);
      results.push_back(decode_in_groups(model, golden.sequence(5), 4));
    });
  }
  CHECK(same_bits(results[0], results[1]));
}

TEST_CASE("a prefill stops between chunks and goes on from there", "[model]") {
  const Golden golden("3.64");
  const auto tokens = golden.sequence(6);
  with_model(example_pack("3.64"), 1, {.context = 256, .prefill_chunk = 64}, [&](Model& model, int) {
    const std::unique_ptr<SequenceState> whole = model.new_sequence();
    const std::vector<float> expected = logits_of(model, model.prefill(*whole, tokens.first(200)));

    const std::unique_ptr<SequenceState> state = model.new_sequence();
    model.prefill(*state, tokens.first(200), [](int64_t first, HiddenRows) { return first < 64; });
    CHECK(state->length() == 128);
    CHECK(same_bits(logits_of(model, model.prefill(*state, tokens.subspan(128, 72))), expected));

    state->clear();
    CHECK(state->length() == 0);
    CHECK(same_bits(logits_of(model, model.prefill(*state, tokens.first(200))), expected));
  });
}

TEST_CASE("latents kept in bf16 change logits only a little", "[model]") {
  const Golden golden("3.64");
  std::vector<std::vector<float>> results;
  for (const KvCacheType kv_cache : {KvCacheType::fp32, KvCacheType::bf16}) {
    with_model(example_pack("3.64"), 1, {.context = 256, .kv_cache = kv_cache}, [&](Model& model, int) {
      const std::unique_ptr<SequenceState> state = model.new_sequence();
      results.push_back(logits_of(model, model.prefill(*state, golden.sequence(7).first(100))));
      CHECK(model.memory().kv_per_token == 3 * (512 + 64) * (kv_cache == KvCacheType::bf16 ? 2 : 4));
    });
  }
  float largest = 0;
  for (size_t i = 0; i < results[0].size(); ++i) {
    largest = std::max(largest, std::fabs(results[0][i] - results[1][i]));
  }
  CHECK(largest > 0);
  CHECK(largest < 0.1f);
}

TEST_CASE("argmax agrees with logits and leaves out ids that are no tokens", "[model]") {
  const Golden golden("3.64");
  const int world_size = GENERATE(1, 2);
  const int64_t tokenizer_tokens = GENERATE(0, 300, 1100);
  CAPTURE(world_size, tokenizer_tokens);
  bool same[2] = {true, true};
  with_model(example_pack("3.64"), world_size, {.context = 128, .tokenizer_tokens = tokenizer_tokens},
             [&](Model& model, int rank) {
               const std::unique_ptr<SequenceState> state = model.new_sequence();
               model.prefill(*state, golden.sequence(8).first(100), [&](int64_t, HiddenRows hidden) {
                 const std::vector<float> logits = logits_of(model, hidden);
                 const std::vector<int32_t> best = model.argmax(hidden);
                 const int64_t limit = tokenizer_tokens ? tokenizer_tokens : model.vocab_size();
                 for (int64_t row = 0; row < hidden.rows; ++row) {
                   const auto first = logits.begin() + row * model.vocab_size();
                   const auto expected = std::max_element(first, first + limit) - first;
                   same[rank] = same[rank] && best[static_cast<size_t>(row)] == expected;
                 }
                 return true;
               });
             });
  CHECK(same[0]);
  CHECK(same[1]);
}

TEST_CASE("calls out of range are refused and say what was expected", "[model]") {
  with_model(example_pack("3.12"), 1, {.context = 80, .prefill_chunk = 64}, [](Model& model, int) {
    const std::unique_ptr<SequenceState> state = model.new_sequence();
    const auto usage = [&](const auto& action) { return refusal(action, ErrorKind::usage); };
    CHECK(usage([&] { model.prefill(*state, {}); }) == "a prompt of no tokens, expected at least one");
    CHECK(usage([&] {
            model.prefill(*state, std::vector<int32_t>{1, 2048});
          }) == "token 2048 is not in the vocabulary of 2048");
    CHECK(usage([&] { model.decode(*state, std::vector<int32_t>{-1}); }) ==
          "token -1 is not in the vocabulary of 2048");
    CHECK(usage([&] { model.prefill(*state, std::vector<int32_t>(81, 1)); }) ==
          "the sequence would have 81 tokens, the context holds 80");
    CHECK(usage([&] { model.decode(*state, std::vector<int32_t>(9, 1)); }) ==
          "a decode step of 9 tokens, expected 1 to 8");
    CHECK(usage([&] { model.rollback(*state, 1); }) == "rollback to 1 rows, expected 0 to 0");
    CHECK(usage([&] { model.mtp_truncate(*state, 1); }) == "truncating the MTP cache to 1 rows, expected 0 to 0");

    model.prefill(*state, std::vector<int32_t>(80, 1));
    CHECK(usage([&] { model.decode(*state, std::vector<int32_t>{1}); }) ==
          "the sequence would have 81 tokens, the context holds 80");
  });
}

TEST_CASE("options that a model cannot have are refused", "[model]") {
  const std::unique_ptr<Communicator> communicator = make_local_communicator();
  const auto load = [&](ModelOptions options) {
    options.folder = example_pack("3.12");
    return refusal([&] { Model::load(options, *communicator); }, ErrorKind::usage);
  };
  CHECK(load({.device = "cuda:0"}) == "this build cannot run on device cuda:0, only on cpu");
  CHECK(load({.context = 4097}) == "context of 4097 tokens, expected 1 to 4096, the model's window");
  CHECK(load({.context = 0}) == "context of 0 tokens, expected 1 to 4096, the model's window");
  CHECK(load({.prefill_chunk = 100}) == "prefill chunk of 100 rows, expected a multiple of 64 up to 8192");
}

TEST_CASE("a model without its MTP layer says so", "[model]") {
  with_model(example_pack("3.12"), 1, {.context = 64, .with_mtp = false}, [](Model& model, int) {
    CHECK_FALSE(model.has_mtp());
    const std::unique_ptr<SequenceState> state = model.new_sequence();
    const HiddenRows hidden = model.prefill(*state, std::vector<int32_t>{1});
    CHECK(refusal([&] { model.mtp_forward(*state, hidden, std::vector<int32_t>{1}); }, ErrorKind::usage) ==
          "the model was loaded without an MTP layer");
  });
}

TEST_CASE("the memory report adds up", "[model]") {
  with_model(example_pack("3.64"), 1, {.context = 64}, [](Model& model, int) {
    const ModelMemory memory = model.memory();
    const LingConfig& config = model.config();
    // 6 KDA layers: states and convolution history, two logs of 8 rows; hidden rows of trunk and MTP layer.
    const int64_t width = config.kda_width();
    const int64_t log = kMaxDecodeRows * (7 * width + config.num_attention_heads);
    const int64_t kda = width * config.head_dim + 3 * 3 * width + 2 * log;
    CHECK(memory.state_per_sequence == 4 * (6 * kda + 2 * 256 * config.hidden_size));
    CHECK(memory.weights_mapped > 13'000'000);
    CHECK(memory.weights_mapped < 15'000'000);
    CHECK(memory.weights_copied < 400'000);
    CHECK(memory.weights_per_decode < memory.weights_mapped);
    CHECK(memory.workspace > 0);
  });
}

}  // namespace
}  // namespace tandem
