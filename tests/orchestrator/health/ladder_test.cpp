#include "orchestrator/health/ladder.h"

#include <httplib.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

#include "runtime/common/error.h"
#include "tests/catch.h"

using namespace tandem;
using namespace tandem::health;
using nlohmann::json;
using namespace std::chrono_literals;

namespace {

/// An engine whose every answer a test can bend.
class Engine {
 public:
  Engine() {
    server.Get("/health", [this](const httplib::Request&, httplib::Response& r) {
      ++looks;
      const bool is_ready = looks > looks_until_ready;
      health["phase"] = is_ready ? ready_phase : "loading";
      health["progress"] = 0.5;
      for (json& rank : health["ranks"]) rank["bytes_exchanged"] = questions * bytes_per_question;
      r.status = is_ready && ready_phase == "ready" ? 200 : 503;
      r.set_content(health.dump(), "application/json");
    });
    server.Get("/v1/models", [this](const httplib::Request&, httplib::Response& r) {
      r.set_content(json{{"data", {{{"id", model}}}}}.dump(), "application/json");
    });
    server.Post("/v1/chat/completions", [this](const httplib::Request& request, httplib::Response& r) {
      ++questions;
      question = json::parse(request.body);
      if (answer_delay.count() > 0) std::this_thread::sleep_for(answer_delay);
      r.status = answer_status;
      r.set_content(answer, "application/json");
    });
    port = server.bind_to_any_port("127.0.0.1");
    thread = std::thread([this] { server.listen_after_bind(); });
    while (!server.is_running()) std::this_thread::sleep_for(1ms);  // a stop before the start would be lost
  }
  ~Engine() {
    server.stop();
    thread.join();
  }

  Target target() const {
    Target target;
    target.address = "127.0.0.1";
    target.port = port;
    target.model = "tiny";
    target.context_tokens = 512;
    target.world_size = 2;
    target.probes = {{"What is 12 + 30?", 32, "42", false}};
    target.load_limit = 30s;
    target.ranks_limit = 50ms;
    return target;
  }

  std::string climb_error(Target target) {
    try {
      climb(target, {});
    } catch (const Error& e) {
      CHECK(e.kind() == ErrorKind::health);
      return e.what();
    }
    return "no error";
  }

  httplib::Server server;
  int port = 0;
  int looks_until_ready = 0;
  std::string ready_phase = "ready";
  std::string model = "tiny";
  std::atomic<int> looks = 0, questions = 0;
  int bytes_per_question = 100;
  json health = {{"model", "tiny"},
                 {"context", 512},
                 {"world_size", 2},
                 {"message", "reading shard 3"},
                 {"ranks", {{{"rank", 0}, {"alive", true}}, {{"rank", 1}, {"alive", true}}}}};
  json question;
  int answer_status = 200;
  std::chrono::milliseconds answer_delay{0};
  std::string answer = R"({"choices": [{"message": {"content": "42"}, "finish_reason": "stop"}]})";
  std::thread thread;
};

}  // namespace

TEST_CASE("the ladder is climbed to the top", "[health]") {
  Engine engine;
  engine.looks_until_ready = 2;
  std::vector<std::string> rungs;
  const Report report = climb(engine.target(), [&](const Progress& p) {
    if (rungs.empty() || rungs.back() != rung_name(p.rung)) rungs.emplace_back(rung_name(p.rung));
    if (p.rung == Rung::loading) CHECK(p.text == "loading, reading shard 3");
  });
  CHECK(rungs == std::vector<std::string>{"loading", "model", "probes", "ranks"});
  REQUIRE(report.answers.size() == 1);
  CHECK(report.answers[0].text == "42");
  CHECK(report.context_tokens == 512);
  CHECK(report.rank_bytes_exchanged == std::vector<int64_t>{100, 100});
  CHECK(engine.question.at("temperature") == 0);
  CHECK(engine.question.at("chat_template_kwargs").at("enable_thinking") == false);
}

TEST_CASE("each rung fails with what was expected and what was found", "[health]") {
  Engine engine;
  Target target = engine.target();
  SECTION("a runtime that reports failure") {
    engine.ready_phase = "failed";
    CHECK_THAT(engine.climb_error(target), ContainsSubstring("the runtime failed: reading shard 3"));
  }
  SECTION("a runtime that never gets ready") {
    engine.looks_until_ready = 1'000'000;
    target.load_limit = 100ms;
    CHECK_THAT(engine.climb_error(target), ContainsSubstring("not ready after 100 ms; last heard: loading"));
  }
  SECTION("another model") {
    engine.model = "other";
    CHECK_THAT(engine.climb_error(target), ContainsSubstring("the server offers `other`, expected `tiny`"));
  }
  SECTION("a smaller context") {
    target.context_tokens = 1024;
    CHECK_THAT(engine.climb_error(target), ContainsSubstring("context is 512 tokens, expected 1024"));
  }
  SECTION("fewer ranks") {
    target.world_size = 4;
    CHECK_THAT(engine.climb_error(target), ContainsSubstring("runs on 2 ranks, expected 4"));
  }
  SECTION("an error status") {
    engine.answer_status = 500;
    engine.answer = "out of luck";
    CHECK_THAT(engine.climb_error(target), ContainsSubstring("HTTP 500: out of luck"));
  }
  SECTION("answers that are no chat completions") {
    for (const char* answer : {"", "[]", "42", "{\"choices\": []}", "{\"choices\": 3}", "\xff\xfe"}) {
      engine.answer = answer;
      CHECK_THAT(engine.climb_error(target), ContainsSubstring("holds no choices"));
    }
  }
  SECTION("an answer of the wrong types") {
    engine.answer = R"({"choices": [{"message": {"content": 42}, "finish_reason": null}]})";
    CHECK_THAT(engine.climb_error(target), ContainsSubstring("it is empty"));
  }
  SECTION("an answer that never comes") {
    engine.answer_delay = 500ms;
    target.answer_limit = 100ms;
    CHECK_THAT(engine.climb_error(target), ContainsSubstring("no answer within 100 ms"));
  }
  SECTION("a rank that took no part") {
    engine.bytes_per_question = 0;
    CHECK_THAT(engine.climb_error(target), ContainsSubstring("rank 0 exchanged no bytes"));
  }
  SECTION("a rank that is not alive") {
    engine.health["ranks"][1]["alive"] = false;
    CHECK_THAT(engine.climb_error(target), ContainsSubstring("rank 1 is not alive"));
  }
}

TEST_CASE("a port that nobody opens is waited for no longer than allowed", "[health]") {
  Target target;
  {
    const Engine engine;
    target = engine.target();
  }
  target.load_limit = 50ms;
  CHECK_THROWS_WITH(climb(target, {}), ContainsSubstring("last heard: nobody listens there yet"));
}

TEST_CASE("an interruption ends the climb wherever it is", "[health]") {
  Engine engine;
  Target target = engine.target();
  const bool during_answer = GENERATE(true, false);
  if (during_answer)
    engine.answer_delay = 300ms;
  else
    engine.looks_until_ready = 1'000'000;
  std::stop_source stop;
  std::jthread later([&] {
    while (during_answer ? engine.questions == 0 : engine.looks == 0) std::this_thread::sleep_for(1ms);
    stop.request_stop();
  });
  try {
    climb(target, {}, stop.get_token());
    FAIL("no error");
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::interrupted);
  }
}

TEST_CASE("a foreign engine is asked over its own model name and needs no ranks", "[health]") {
  Engine engine;
  engine.model = "their-name";
  engine.health = json::object();
  Target target = engine.target();
  target.engine = EngineKind::command;
  const Report report = climb(target, {});
  CHECK(report.model == "their-name");
  CHECK(engine.question.at("model") == "their-name");
  CHECK(report.rank_bytes_exchanged.empty());
}
