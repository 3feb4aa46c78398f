#include "runtime/engine/engine.h"

#include <filesystem>
#include <fstream>
#include <thread>

#include "runtime/engine/memory_guard.h"
#include "tests/catch.h"
#include "tests/runtime/engine/scripted_model.h"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using test::ScriptedModel;

const Tokenizer& tokenizer() {
  static const Tokenizer instance = Tokenizer::load(TANDEM_SOURCE_DIR "/examples/packs/ling-tiny-exl3-3.64bpw");
  return instance;
}

constexpr int32_t kEnd = 2018;

/// An engine at work on its own thread.
class Running {
 public:
  explicit Running(ScriptedModel& model, int64_t max_waiting = 4)
      : engine(model, tokenizer(), {.max_waiting = max_waiting, .end_token_ids = {kEnd}, .idle_interval = 5ms}),
        thread_([this] {
          try {
            engine.run();
          } catch (const Error& e) {
            error = e.what();
          }
        }) {}
  ~Running() { finish(); }
  void finish() {
    engine.stop();
    if (thread_.joinable()) thread_.join();
  }

  Engine engine;
  std::string error;

 private:
  std::thread thread_;
};

GenerationRequest request(int64_t prompt_tokens, int64_t max_tokens) {
  GenerationRequest request;
  request.prompt.assign(static_cast<size_t>(prompt_tokens), 5);
  request.max_tokens = max_tokens;
  request.sampling.temperature = 0;
  return request;
}

struct Outcome {
  std::string content, reasoning;
  std::optional<GenerationResult> result;
  std::optional<GenerationFailure> failure;
};

Outcome read(Generation& generation) {
  Outcome outcome;
  while (!outcome.result && !outcome.failure) {
    const auto event = generation.wait(60s);
    REQUIRE(event);
    if (const auto* delta = std::get_if<AnswerText::Delta>(&*event)) {
      outcome.content += delta->content;
      outcome.reasoning += delta->reasoning;
    } else if (const auto* result = std::get_if<GenerationResult>(&*event)) {
      outcome.result = *result;
    } else {
      outcome.failure = std::get<GenerationFailure>(*event);
    }
  }
  return outcome;
}

/// Spells `text` after `prompt_tokens`, then ends the turn.
auto spell(const std::string& text, size_t prompt_tokens) {
  auto tokens = tokenizer().encode_untrusted(text);
  tokens.push_back(kEnd);
  return [=](const std::vector<int32_t>& sequence) { return tokens.at(sequence.size() - prompt_tokens); };
}

TEST_CASE("a prompt is read in chunks and the answer ends at the end of turn", "[engine]") {
  ScriptedModel model;
  model.next = spell("Hello there, friend", 20);
  Running running(model);
  const auto generation = running.engine.submit(request(20, 100));
  const Outcome outcome = read(*generation);
  REQUIRE(outcome.result);
  CHECK(outcome.content == "Hello there, friend");
  CHECK(outcome.result->reason == FinishReason::stop);
  CHECK(outcome.result->detail == FinishDetail::stop_token);
  CHECK(outcome.result->prompt_tokens == 20);
  CHECK(outcome.result->completion_tokens ==
        static_cast<int64_t>(tokenizer().encode_untrusted("Hello there, friend").size()) + 1);
  CHECK(model.prefill_chunks == 3);
  CHECK(running.engine.metrics().finished_stop == 1);
}

TEST_CASE("an answer ends at max_tokens, at a stop string, at a given token, or goes on past the end of turn",
          "[engine]") {
  ScriptedModel model;
  Running running(model);
  const auto a = tokenizer().encode_untrusted("a").at(0);
  SECTION("max_tokens") {
    model.next = [&](const auto&) { return a; };
    const Outcome outcome = read(*running.engine.submit(request(4, 6)));
    CHECK(outcome.content == "aaaaaa");
    CHECK(outcome.result->reason == FinishReason::length);
    CHECK(model.decode_steps == 5);  // the last token is never fed back
  }
  SECTION("stop string") {
    model.next = spell("one two three", 4);
    GenerationRequest with_stop = request(4, 100);
    with_stop.text.stop = {" two"};
    const Outcome outcome = read(*running.engine.submit(std::move(with_stop)));
    CHECK(outcome.content == "one");
    CHECK(outcome.result->detail == FinishDetail::stop_string);
    CHECK(outcome.result->stop_string == " two");
  }
  SECTION("stop token of the client") {
    model.next = [&](const auto&) { return a; };
    GenerationRequest with_stop = request(4, 100);
    with_stop.stop_token_ids = {a};
    const Outcome outcome = read(*running.engine.submit(std::move(with_stop)));
    CHECK(outcome.content.empty());
    CHECK(outcome.result->detail == FinishDetail::stop_token);
  }
  SECTION("ignore_eos") {
    model.next = [&](const auto& sequence) { return sequence.size() == 4 ? kEnd : a; };
    GenerationRequest ignoring = request(4, 3);
    ignoring.ignore_eos = true;
    CHECK(read(*running.engine.submit(std::move(ignoring))).content == "aa");
  }
}

TEST_CASE("ids that the tokenizer does not know are never produced", "[engine]") {
  ScriptedModel model;
  model.next = [](const auto&) { return 2047; };
  Running running(model);
  const Outcome outcome = read(*running.engine.submit(request(4, 2)));
  REQUIRE(outcome.result);
  for (const int32_t id : model.sequence()) CHECK(id < tokenizer().vocabulary_size());
}

TEST_CASE("a second request waits, a full queue refuses", "[engine]") {
  ScriptedModel model;
  model.step_time = 1ms;
  const auto a = tokenizer().encode_untrusted("a").at(0);
  std::atomic<bool> open = false;
  model.next = [&](const auto& sequence) {
    while (!open) std::this_thread::sleep_for(1ms);
    return sequence.size() < 10 ? a : kEnd;
  };
  Running running(model, 1);
  const auto first = running.engine.submit(request(4, 100));
  while (running.engine.status().running == 0) std::this_thread::sleep_for(1ms);
  const auto second = running.engine.submit(request(4, 100));
  REQUIRE(second);
  CHECK(running.engine.submit(request(4, 100)) == nullptr);
  CHECK(running.engine.status().waiting == 1);
  second->cancel();  // a client that left frees its place
  const auto third = running.engine.submit(request(4, 100));
  REQUIRE(third);
  open = true;
  CHECK(read(*first).result);
  CHECK(read(*third).result);
  CHECK(running.engine.metrics().request_seconds.count() == 2);
}

TEST_CASE("a client that leaves stops the work within a step", "[engine]") {
  ScriptedModel model;
  const auto a = tokenizer().encode_untrusted("a").at(0);
  std::shared_ptr<Generation> generation;
  std::atomic<bool> submitted = false;
  SECTION("while it decodes") {
    std::atomic<int64_t> steps_at_cancel = -1;
    model.next = [&](const auto& sequence) {
      while (!submitted) std::this_thread::sleep_for(1ms);
      if (sequence.size() == 20) {
        generation->cancel();
        steps_at_cancel = model.decode_steps.load();
      }
      return a;
    };
    Running running(model);
    generation = running.engine.submit(request(4, 4000));
    submitted = true;
    while (running.engine.metrics().cancelled == 0) std::this_thread::sleep_for(1ms);
    CHECK(model.decode_steps - steps_at_cancel <= 1);
    model.next = spell("next", 4);
    CHECK(read(*running.engine.submit(request(4, 100))).content == "next");
  }
  SECTION("while it reads the prompt") {
    model.step_time = 2ms;
    Running running(model);
    generation = running.engine.submit(request(4000, 4));
    while (model.prefill_chunks < 3) std::this_thread::sleep_for(1ms);
    generation->cancel();
    while (running.engine.metrics().cancelled == 0) std::this_thread::sleep_for(1ms);
    CHECK(model.prefill_chunks < 400);
  }
}

TEST_CASE("values that are not numbers fail the request and leave the engine at work", "[engine]") {
  ScriptedModel model;
  model.next = spell("fine", 4);
  Running running(model);
  model.nan = true;
  GenerationRequest sampled = request(4, 10);
  sampled.sampling.temperature = GENERATE(0.0, 1.0);
  const Outcome outcome = read(*running.engine.submit(std::move(sampled)));
  REQUIRE(outcome.failure);
  CHECK(outcome.failure->code == "engine_failure");
  model.nan = false;
  CHECK(read(*running.engine.submit(request(4, 10))).content == "fine");
}

TEST_CASE("a stop ends open answers with an error and tells the ranks", "[engine]") {
  ScriptedModel model;
  model.step_time = 1ms;
  const auto a = tokenizer().encode_untrusted("a").at(0);
  model.next = [&](const auto&) { return a; };
  Running running(model);
  const auto first = running.engine.submit(request(4, 4000));
  const auto second = running.engine.submit(request(4, 4000));
  while (model.decode_steps == 0) std::this_thread::sleep_for(1ms);
  running.finish();
  CHECK(running.error.empty());
  CHECK(read(*first).failure->code == "server_shutdown");
  CHECK(read(*second).failure->code == "server_shutdown");
  CHECK(model.stops == 1);
  CHECK_THROWS_AS(running.engine.submit(request(4, 1)), Error);
}

TEST_CASE("an error of the model ends the engine and every open answer", "[engine]") {
  ScriptedModel model;
  std::atomic<bool> open = false;
  model.next = [&](const auto&) -> int32_t {
    while (!open) std::this_thread::sleep_for(1ms);
    throw Error(ErrorKind::peer_lost, "rank 1 was lost");
  };
  Running running(model);
  const auto first = running.engine.submit(request(4, 10));
  const auto second = running.engine.submit(request(4, 10));
  open = true;
  CHECK(read(*first).failure->message == "rank 1 was lost");
  CHECK(read(*second).failure->code == "engine_failure");
  running.finish();
  CHECK(running.error == "rank 1 was lost");
}

TEST_CASE("a failure seen from outside ends open answers even while the model is stuck", "[engine]") {
  ScriptedModel model;
  std::atomic<bool> stuck = true;
  model.next = [&](const auto&) {
    while (stuck) std::this_thread::sleep_for(1ms);
    return 5;
  };
  Running running(model);
  const auto generation = running.engine.submit(request(4, 10));
  while (model.prefill_chunks == 0) std::this_thread::sleep_for(1ms);
  running.engine.fail(Error(ErrorKind::peer_lost, "rank 1 was lost"));
  CHECK(read(*generation).failure->message == "rank 1 was lost");
  while (running.engine.status().step_age == 0ms) std::this_thread::sleep_for(1ms);  // it grows while nothing moves
  stuck = false;
  running.finish();
  CHECK(running.error == "rank 1 was lost");
}

TEST_CASE("an engine with nothing to do shows the other ranks that it lives", "[engine]") {
  ScriptedModel model;
  Running running(model);
  while (model.idles < 3) std::this_thread::sleep_for(1ms);
  CHECK(running.engine.status().running == 0);
  CHECK(running.engine.status().step_age == 0ms);
}

TEST_CASE("the warm-up finds a model that computes garbage", "[engine]") {
  ScriptedModel model;
  model.next = [](const auto&) { return 5; };
  Engine engine(model, tokenizer(), {.end_token_ids = {kEnd}});
  CHECK(engine.warm_up({1, 2, 3}, 4).completion_tokens == 4);
  model.nan = true;
  CHECK_THROWS_AS(engine.warm_up({1, 2, 3}, 4), BadLogits);
}

TEST_CASE("memory below the floor is seen, and reported when it stays", "[engine][memory]") {
  char folder[] = "/tmp/tandem-memory-XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  const std::filesystem::path meminfo = std::filesystem::path(folder) / "meminfo";
  const auto write = [&](int64_t kib) {
    std::ofstream(meminfo.string() + ".new") << "MemTotal:  99999999 kB\nMemAvailable:   " << kib << " kB\n";
    std::filesystem::rename(meminfo.string() + ".new", meminfo);
  };
  write(4096);
  CHECK(available_memory_bytes(meminfo) == 4096 * 1024);
  CHECK_FALSE(available_memory_bytes(std::filesystem::path(folder) / "none"));
  std::atomic<int> breaches = 0;
  std::string report;
  {
    MemoryGuard guard({.floor_bytes = 2048 * 1024,
                       .patience = 30ms,
                       .interval = 2ms,
                       .meminfo = meminfo,
                       .on_breach = [&](const Error& e) {
                         report = e.what();
                         ++breaches;
                       }});
    std::this_thread::sleep_for(20ms);
    CHECK_FALSE(guard.below_floor());
    write(1024);
    while (!guard.below_floor()) std::this_thread::sleep_for(1ms);
    while (breaches == 0) std::this_thread::sleep_for(1ms);
  }
  CHECK(breaches == 1);
  CHECK_THAT(report, ContainsSubstring("1.0 MiB of memory left, below the floor of 2.0 MiB"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tandem
