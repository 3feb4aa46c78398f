// tandem-runtime serve with the example pack: one rank, and two ranks as processes of their own.

#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "orchestrator/split/split.h"
#include "runtime/comm/control_link.h"
#include "tests/catch.h"
#include "tests/orchestrator/temporary_folder.h"
#include "tests/runtime/server/http_client.h"
#include "tests/runtime/server/rank_process.h"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using nlohmann::json;
using test::http_get;
using test::http_post;
using test::HttpConnection;
using test::post_text;
using test::RankProcess;

const std::string kPack = TANDEM_SOURCE_DIR "/examples/packs/ling-tiny-exl3-3.64bpw";

/// One or two ranks with all their flags.
class Ranks {
 public:
  using Flags = std::map<std::string, std::string>;

  /// @param more, for_rank_1  add to the flags, or replace them
  explicit Ranks(int world_size, const Flags& more = {}, const Flags& for_rank_1 = {}) {
    const comm::Socket free_port = comm::listen_on({"127.0.0.1", 0});
    const std::string rendezvous = "127.0.0.1:" + std::to_string(comm::local_port(free_port));
    std::vector<std::string> folders = {kPack};
    if (world_size > 1) {
      static const test::TemporaryFolder cut;
      static const SplitResult split =
          split_pack({.pack_folder = kPack, .ranks_folder = cut.path(), .world_size = 2, .disk_reserve_bytes = 0});
      folders = {split.ranks[0].folder, split.ranks[1].folder};
    }
    for (int rank = 0; rank < world_size; ++rank) {
      Flags flags = {{"--pack", folders[rank]},
                     {"--rank", std::to_string(rank)},
                     {"--world-size", std::to_string(world_size)},
                     {"--rendezvous", rendezvous},
                     {"--listen", "127.0.0.1:0"},
                     {"--model-name", "tiny"},
                     {"--threads", "1"}};
      for (const auto& [name, value] : more) flags[name] = value;
      if (rank == 1)
        for (const auto& [name, value] : for_rank_1) flags[name] = value;
      std::vector<std::string> arguments = {"serve"};
      for (const auto& [name, value] : flags) arguments.insert(arguments.end(), {name, value});
      ranks_.push_back(
          std::make_unique<RankProcess>(arguments, folder_.path() / ("rank" + std::to_string(rank) + ".log")));
    }
  }

  RankProcess& operator[](int rank) { return *ranks_[rank]; }

  int ready_port() {
    const int port = ranks_[0]->port();
    INFO(ranks_[0]->log());
    REQUIRE(port > 0);
    while (http_get(port, "/health").status != 200) {
      REQUIRE(ranks_[0]->logged("ready"));
      std::this_thread::sleep_for(10ms);
    }
    return port;
  }

 private:
  test::TemporaryFolder folder_;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
};

/// A stream that would go on for minutes, once its first token has come.
std::unique_ptr<HttpConnection> endless_stream(int port) {
  auto connection = std::make_unique<HttpConnection>(port);
  connection->send(
      post_text("/v1/completions", R"({"prompt": "Once", "stream": true, "ignore_eos": true, "max_tokens": 4000})"));
  connection->read_until([](const std::string& text) { return text.find("data: ") != std::string::npos; });
  return connection;
}

json last_error(HttpConnection& stream) {
  const auto events = stream.response().events();
  if (events.size() < 2 || events.back() != "[DONE]") return {};
  return json::parse(events[events.size() - 2])["error"];
}

TEST_CASE("the example pack answers a sum, the same with one rank and with two", "[serve]") {
  const int world_size = GENERATE(1, 2);
  Ranks ranks(world_size);
  const int port = ranks.ready_port();
  const json body = http_post(port, "/v1/chat/completions",
                              json{{"messages", {{{"role", "user"}, {"content", "What is 12 + 30?"}}}},
                                   {"temperature", 0},
                                   {"chat_template_kwargs", {{"enable_thinking", false}}}})
                        .json();
  CHECK_THAT(body["choices"][0]["message"]["content"].get<std::string>(), ContainsSubstring("42"));
  CHECK(body["choices"][0]["finish_reason"] == "stop");

  std::ifstream file(TANDEM_TEST_DATA "/golden/golden-3.64bpw.json");
  const json golden = json::parse(file);
  for (int i = 0; i < 3; ++i) {
    const json& chat = golden[i];
    const auto events = http_post(port, "/v1/completions",
                                  json{{"prompt", chat["prompt_tokens"]},
                                       {"temperature", 0},
                                       {"ignore_eos", true},
                                       {"stream", i % 2 == 1},
                                       {"max_tokens", chat["greedy_tokens"].size()}});
    std::string text;
    if (i % 2 == 0) {
      text = events.json()["choices"][0]["text"];
    } else {
      for (const auto& event : events.events())
        if (event != "[DONE]") text += json::parse(event)["choices"][0].value("text", "");
    }
    const json ids = {{"tokens", chat["greedy_tokens"]}};
    std::string expected = http_post(port, "/detokenize", ids).json()["prompt"];
    for (const std::string control : {"<|role_end|>", "<|endoftext|>", "<role>", "</role>", "<|startoftext|>"})
      for (size_t at; (at = expected.find(control)) != std::string::npos;) expected.erase(at, control.size());
    CHECK(text == expected);
  }

  const json health = http_get(port, "/health").json();
  REQUIRE(health["ranks"].size() == static_cast<size_t>(world_size));
  for (const json& rank : health["ranks"]) {
    CHECK(rank["alive"] == true);
    if (world_size == 1) CHECK(rank["bytes_exchanged"] == 0);
  }
  if (world_size > 1) CHECK(health["ranks"][0]["bytes_exchanged"] > 0);
  ranks[0].send(SIGTERM);
  for (int rank = 0; rank < world_size; ++rank) {
    CHECK(ranks[rank].wait() == 0);
    INFO(ranks[rank].log());
    CHECK(ranks[rank].log().find("error") == std::string::npos);
  }
}

TEST_CASE("a request that does not say how to sample gets what the flags say, and may still say otherwise", "[serve]") {
  Ranks ranks(1, {{"--temperature", "0"}});
  const int port = ranks.ready_port();
  const auto answer = [&](json body) {
    body.update({{"prompt", "In the beginning"}, {"max_tokens", 24}, {"ignore_eos", true}});
    return http_post(port, "/v1/completions", body).json()["choices"][0]["text"].get<std::string>();
  };
  const std::string greedy = answer({{"temperature", 0}});
  CHECK(answer({{"seed", 1}}) == greedy);
  CHECK(answer({{"seed", 1}, {"temperature", 5}, {"top_p", 1}, {"top_k", 0}}) != greedy);
}

TEST_CASE("any rank that is asked to stop stops them all in good order", "[serve]") {
  Ranks ranks(2);
  const auto stream = endless_stream(ranks.ready_port());
  ranks[1].send(SIGTERM);
  CHECK(last_error(*stream)["code"] == "server_shutdown");
  CHECK(ranks[0].wait() == 0);
  CHECK(ranks[1].wait() == 0);
}

TEST_CASE("a killed follower ends an open stream with an error event and rank 0 with exit code 6", "[serve]") {
  Ranks ranks(2);
  const auto stream = endless_stream(ranks.ready_port());
  const auto begin = Clock::now();
  ranks[1].send(SIGKILL);
  const json error = last_error(*stream);
  CHECK(error["code"] == "engine_failure");
  CHECK(error["message"] == "rank 1 was lost: it closed its connection");
  CHECK(ranks[0].wait() == 6);
  CHECK(Clock::now() - begin < 10s);
  CHECK_THAT(ranks[0].log(), ContainsSubstring("error: rank 1 was lost: it closed its connection"));
}

TEST_CASE("a killed rank 0 ends the follower with exit code 6", "[serve]") {
  Ranks ranks(2);
  const auto stream = endless_stream(ranks.ready_port());
  ranks[0].send(SIGKILL);
  CHECK(ranks[1].wait() == 6);
  CHECK_THAT(ranks[1].log(), ContainsSubstring("error: rank 0 was lost: it closed its connection"));
}

TEST_CASE("a rank that stands still is as good as dead, idle or in mid-stream", "[serve]") {
  const bool streaming = GENERATE(false, true);
  Ranks ranks(2, {{"--peer-timeout", "2"}});
  const int port = ranks.ready_port();
  const auto stream = streaming ? endless_stream(port) : nullptr;
  const auto begin = Clock::now();
  ranks[1].send(SIGSTOP);
  if (stream) CHECK_THAT(last_error(*stream)["message"].get<std::string>(), ContainsSubstring("rank 1 was lost"));
  CHECK(ranks[0].wait() == 6);
  CHECK(Clock::now() - begin < 10s);
  ranks[1].send(SIGCONT);
  CHECK(ranks[1].wait() == 6);
}

TEST_CASE("ranks with different settings refuse each other and name both values", "[serve]") {
  Ranks ranks(2, {}, {{"--context", "512"}});
  CHECK(ranks[0].wait() == 2);
  CHECK(ranks[1].wait() == 2);
  CHECK_THAT(ranks[0].log(), ContainsSubstring("rank 1 has `512` for context, rank 0 has `4096`"));
}

TEST_CASE("a rank that is alone says whom it waits for and stops when asked", "[serve]") {
  Ranks ranks(1, {{"--world-size", "2"}});
  const int port = ranks[0].port();
  const json health = http_get(port, "/health").json();
  CHECK(health["phase"] == "loading");
  ranks[0].send(SIGTERM);
  CHECK(ranks[0].wait() == 0);
}

TEST_CASE("a machine below its memory floor ends the rank with exit code 7 and a report", "[serve]") {
  const test::TemporaryFolder folder;
  const auto available_kib = [&](int64_t kib) {
    std::ofstream(folder / "new") << "MemAvailable: " << kib << " kB\n";
    std::filesystem::rename(folder / "new", folder / "meminfo");
  };
  available_kib(1 << 20);
  Ranks ranks(1,
              {{"--memory-floor", "2MiB"}, {"--meminfo", (folder / "meminfo").string()}, {"--memory-patience", "3"}});
  const int port = ranks.ready_port();
  available_kib(1024);
  REQUIRE(ranks[0].logged("memory below the floor"));
  CHECK(http_post(port, "/v1/completions", json{{"prompt", "x"}}).status == 503);
  CHECK(ranks[0].wait() == 7);
  CHECK_THAT(ranks[0].log(), ContainsSubstring("below the floor of 2.0 MiB"));
}

TEST_CASE("flags that cannot be are refused", "[serve]") {
  CHECK(Ranks(1, {{"--memory-floor", "much"}})[0].wait() == 2);
  CHECK(Ranks(1, {{"--listen", "nowhere"}})[0].wait() == 2);
  CHECK(Ranks(1, {{"--top-p", "1.5"}})[0].wait() == 2);
  CHECK(Ranks(1, {{"--pack", "/nowhere"}})[0].wait() == 3);
}

}  // namespace
}  // namespace tandem
