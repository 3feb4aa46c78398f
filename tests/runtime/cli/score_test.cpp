#include "runtime/cli/score.h"

#include <cmath>
#include <cstring>

#include "runtime/common/error.h"
#include "runtime/common/safetensors.h"
#include "tests/catch.h"
#include "tests/orchestrator/temporary_folder.h"
#include "tests/runtime/model/golden.h"
#include "tests/text_files.h"

namespace tandem {
namespace {

using test::Golden;
using test::TemporaryFolder;

std::string refusal(const std::string& lines) {
  TemporaryFolder folder;
  test::write_text(folder / "in.jsonl", lines);
  try {
    read_token_lines(folder / "in.jsonl", 2048, 16);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    const std::string place = std::filesystem::path(error.where()).filename().string();
    return place + ": " + error.what();
  }
  return "no error";
}

TEST_CASE("token files are checked line by line", "[score]") {
  TemporaryFolder folder;
  test::write_text(folder / "in.jsonl", "{\"tokens\":[1,2047]}\r\n{\"tokens\": [0]}");
  CHECK(read_token_lines(folder / "in.jsonl", 2048, 16) == std::vector<std::vector<int32_t>>{{1, 2047}, {0}});

  CHECK(refusal("") == "in.jsonl: the file has no lines");
  CHECK(refusal("{\"tokens\":[1]}\n\n{\"tokens\":[1]}\n") == "in.jsonl:2: the line is not JSON");
  CHECK(refusal("{\"tokens\":[1]") == "in.jsonl:1: the line is not JSON");
  const std::string shape = "the line is not an object with a list `tokens` and nothing else";
  CHECK(refusal("[1]") == "in.jsonl:1: " + shape);
  CHECK(refusal("{\"tokens\":[1],\"text\":\"a\"}") == "in.jsonl:1: " + shape);
  CHECK(refusal("{\"ids\":[1]}") == "in.jsonl:1: " + shape);
  CHECK(refusal("{\"tokens\":[1]}\n{\"tokens\":[]}") == "in.jsonl:2: the list of tokens is empty");
  CHECK(refusal("{\"tokens\":[3,2048]}") == "in.jsonl:1: token 1 is 2048, expected 0 to 2047");
  CHECK(refusal("{\"tokens\":[-1]}") == "in.jsonl:1: token 0 is -1, expected 0 to 2047");
  CHECK(refusal("{\"tokens\":[18446744073709551615]}") ==
        "in.jsonl:1: token 0 is 18446744073709551615, expected 0 to 2047");
  CHECK(refusal("{\"tokens\":[1.5]}") == "in.jsonl:1: token 0 is 1.5, expected a whole number");
  CHECK(refusal("{\"tokens\":[\"\\u001b[2J\"]}") == "in.jsonl:1: token 0 is \"\\u001b[2J\", expected a whole number");
  CHECK(refusal("{\"tokens\":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]}") ==
        "in.jsonl:1: the sequence has 17 tokens, the model's window is 16");
  CHECK(refusal(std::string(100'000, '[')) == "in.jsonl:1: the line is not JSON");
}

/// A written file of scores.
struct Scores {
  explicit Scores(const std::filesystem::path& path)
      : header(read_safetensors_header(path)), file(test::read_text(path)) {}

  template <typename T>
  std::vector<T> read(const std::string& name, const std::vector<int64_t>& shape) const {
    CAPTURE(name);
    const TensorInfo* info = header.find(name);
    REQUIRE(info);
    CHECK(info->shape == shape);
    std::vector<T> values(static_cast<size_t>(info->bytes()) / sizeof(T));
    if (values.empty()) return values;
    std::memcpy(values.data(), file.data() + header.data_offset + info->begin, static_cast<size_t>(info->bytes()));
    return values;
  }

  SafetensorsHeader header;
  std::string file;
};

TEST_CASE("score writes log-probabilities, the most likely tokens and logits; rank 0 alone", "[score]") {
  const int world_size = GENERATE(1, 2);
  CAPTURE(world_size);
  const Golden golden("3.12");
  TemporaryFolder folder;
  const auto whole = golden.sequence(0).first(100);
  const std::vector<std::vector<int32_t>> sequences{{whole.begin(), whole.end()}, {5}};
  ScoreSummary summaries[2];
  test::with_model(
      test::example_pack("3.12"), world_size, {.context = 128, .prefill_chunk = 64}, [&](Model& model, int rank) {
        ScoreOptions options{.out = folder / ("rank" + std::to_string(rank)), .logits = rank == 0, .mtp = rank == 0};
        summaries[rank] = score(model, rank == 0 ? sequences : decltype(sequences){}, options);
      });
  CHECK_FALSE(std::filesystem::exists(folder / "rank1"));
  const Scores scores(folder / "rank0");
  CHECK(scores.header.tensors.size() == 10);

  const std::vector<float> logprobs = scores.read<float>("logprobs.0", {99});
  for (size_t i = 0; i < logprobs.size(); ++i) CHECK(std::fabs(logprobs[i] - golden.token_logprobs[i]) < 1e-3f);
  const std::vector<int32_t> top_ids = scores.read<int32_t>("top_ids.0", {100, 8});
  const std::vector<float> top_logprobs = scores.read<float>("top_logprobs.0", {100, 8});
  const std::vector<float> logits = scores.read<float>("logits.0", {100, 2048});
  for (size_t row = 0; row < 100; ++row) {
    CHECK(top_ids[row * 8] == golden.top_ids[row * 8]);
    CHECK(std::fabs(top_logprobs[row * 8 + 7] - golden.top_logprobs[row * 8 + 7]) < 2e-2f);  // stored in fp16
  }
  for (size_t i = 0; i < 64 * 2048; ++i) {
    if (std::fabs(logits[i] - golden.logits[i]) > 5e-3f) FAIL("logit " << i);
  }
  const std::vector<float> mtp_logits = scores.read<float>("mtp_logits.0", {99, 2048});
  for (size_t i = 0; i < 32 * 2048; ++i) {
    if (std::fabs(mtp_logits[i] - golden.mtp_logits[i]) > 5e-3f) FAIL("MTP logit " << i);
  }
  CHECK(scores.read<float>("logprobs.1", {0}).empty());
  CHECK(scores.read<int32_t>("top_ids.1", {1, 8}).size() == 8);
  CHECK(scores.read<float>("mtp_logits.1", {0, 2048}).empty());

  CHECK(summaries[0].sequences == 2);
  CHECK(summaries[0].predicted_tokens == 99);
  CHECK(summaries[world_size - 1].negative_log_likelihood == summaries[0].negative_log_likelihood);
}

TEST_CASE("a score that is interrupted leaves no file", "[score]") {
  TemporaryFolder folder;
  test::with_model(test::example_pack("3.12"), 1, {.context = 128, .prefill_chunk = 64}, [&](Model& model, int) {
    int chunks = 0;
    ScoreOptions options{.out = folder / "out", .between_chunks = [&] {
                           if (++chunks == 2) throw Error(ErrorKind::interrupted, "interrupted");
                         }};
    const std::vector<std::vector<int32_t>> sequences{std::vector<int32_t>(128, 1)};
    CHECK_THROWS_AS(score(model, sequences, options), Error);
  });
  CHECK(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace tandem
