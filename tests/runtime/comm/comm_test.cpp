#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "runtime/comm/communicator.h"
#include "runtime/comm/control_link.h"
#include "tests/catch.h"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

std::string free_rendezvous() {
  const comm::Socket socket = comm::listen_on({"127.0.0.1", 0});
  return "127.0.0.1:" + std::to_string(comm::local_port(socket));
}

GroupOptions options_for(int rank, int world_size, const std::string& rendezvous) {
  GroupOptions options;
  options.rank = rank;
  options.world_size = world_size;
  options.rendezvous = rendezvous;
  options.token = "job";
  options.join_timeout = 60s;
  options.settings = {{"version", "1"}, {"context", "4096"}};
  return options;
}

/// Runs `body` as every rank of a world, each in a thread; returns each rank's error text, "" for none.
std::vector<std::string> run_ranks(int world_size, const std::function<void(Communicator&)>& body,
                                   const std::function<void(GroupOptions&)>& change = {}) {
  const std::string rendezvous = free_rendezvous();
  std::vector<std::string> errors(world_size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        GroupOptions options = options_for(rank, world_size, rendezvous);
        if (change) change(options);
        const auto communicator = join_group(options);
        body(*communicator);
      } catch (const Error& e) {
        errors[rank] = e.what();
      }
    });
  for (auto& thread : threads) thread.join();
  return errors;
}

/// A rank in a process of its own, as death and stalling can only be had there.
class RankProcess {
 public:
  explicit RankProcess(const std::function<int()>& body) : pid_(fork()) {
    if (pid_ == 0) _exit(body());
  }
  ~RankProcess() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  void send(int signal) const { kill(pid_, signal); }

 private:
  pid_t pid_;
};

int follow_forever(const GroupOptions& options) {
  try {
    const auto communicator = join_group(options);
    float value = 1;
    while (true) communicator->sum_in_rank_order(&value, 1);
  } catch (const Error& e) {
    return exit_code(e.kind());
  }
}

TEST_CASE("a world of one exchanges nothing and needs no rendezvous", "[comm]") {
  const auto communicator = join_group({});
  float data[2] = {1, 2};
  communicator->sum_in_rank_order(data, 2);
  CHECK(data[1] == 2);
  int32_t copy = 0;
  const int32_t own = 7;
  communicator->all_gather(&own, &copy, sizeof own);
  CHECK(copy == 7);
  communicator->broadcast(0, &copy, sizeof copy);
  communicator->barrier(1s);
  CHECK(communicator->bytes_exchanged() == 0);
  REQUIRE(communicator->ranks().size() == 1);
}

TEST_CASE("sums are added in rank order and have the same bits on every rank", "[comm]") {
  const int world_size = GENERATE(2, 3);
  // Values whose sum depends on the order of additions.
  const float parts[3] = {1e8F, -1e8F, 1.0F};
  float expected = parts[0];
  for (int rank = 1; rank < world_size; ++rank) expected += parts[rank];
  std::vector<std::vector<float>> results(world_size);
  const auto errors = run_ranks(world_size, [&](Communicator& c) {
    for (const int64_t n : {1, 1000, 300'000}) {
      std::vector<float> data(n, parts[c.rank()]);
      c.sum_in_rank_order(data.data(), n);
      results[c.rank()] = data;
    }
  });
  for (int rank = 0; rank < world_size; ++rank) {
    CHECK(errors[rank] == "");
    REQUIRE(results[rank].size() == 300'000);
    for (const float value : results[rank])
      if (std::memcmp(&value, &expected, sizeof value) != 0) FAIL("rank " << rank << ": " << value);
  }
}

TEST_CASE("gathered blocks stand in rank order and a broadcast reaches everyone", "[comm]") {
  const auto errors = run_ranks(3, [](Communicator& c) {
    for (int round = 0; round < 50; ++round) {
      const int64_t mine[2] = {c.rank() * 10, round};
      int64_t all[6] = {};
      c.all_gather(mine, all, sizeof mine);
      for (int rank = 0; rank < 3; ++rank)
        if (all[2 * rank] != rank * 10 || all[2 * rank + 1] != round) throw Error(ErrorKind::internal, "wrong block");
      int32_t value = c.rank() == round % 3 ? 1000 + round : -1;
      c.broadcast(round % 3, &value, sizeof value);
      if (value != 1000 + round) throw Error(ErrorKind::internal, "wrong broadcast");
    }
    c.barrier(30s);
    // Blocks of 16 bytes to and from two others, a 4-byte broadcast, and one byte each way for the barrier.
    const int64_t sent_as_root = (50 + 2 - c.rank()) / 3;
    const int64_t expected = 50 * 64 + sent_as_root * 8 + (50 - sent_as_root) * 4 + 4;
    if (c.bytes_exchanged() != expected)
      throw Error(ErrorKind::internal, "counted " + std::to_string(c.bytes_exchanged()));
  });
  CHECK(errors == std::vector<std::string>(3));
}

TEST_CASE("settings that differ end the meeting on both sides, naming both values", "[comm]") {
  const auto errors = run_ranks(
      2, [](Communicator&) {},
      [](GroupOptions& options) {
        if (options.rank == 1) options.settings["context"] = "8192";
      });
  CHECK(errors[0] == "rank 1 has `8192` for context, rank 0 has `4096`");
  CHECK(errors[1] == "rank 0 refused this rank: rank 1 has `8192` for context, rank 0 has `4096`");
}

TEST_CASE("a setting that one rank lacks is a difference too", "[comm]") {
  const auto errors = run_ranks(
      2, [](Communicator&) {},
      [](GroupOptions& options) {
        if (options.rank == 0) options.settings["kv cache"] = "bf16";
      });
  CHECK(errors[0] == "rank 1 has nothing for kv cache, rank 0 has `bf16`");
}

TEST_CASE("ranks that disagree on how many they are refuse each other", "[comm]") {
  const auto errors = run_ranks(
      2, [](Communicator&) {},
      [](GroupOptions& options) {
        if (options.rank == 1) options.world_size = 3;
      });
  CHECK(errors[0] == "rank 1 has `3` for world size, rank 0 has `2`");
}

TEST_CASE("rank 0 may come late", "[comm]") {
  const auto errors = run_ranks(
      2, [](Communicator& c) { c.barrier(30s); },
      [](GroupOptions& options) {
        if (options.rank == 0) std::this_thread::sleep_for(600ms);
      });
  CHECK(errors == std::vector<std::string>(2));
}

TEST_CASE("a missing rank is named when the time is up", "[comm]") {
  GroupOptions options = options_for(0, 3, free_rendezvous());
  options.join_timeout = 300ms;
  try {
    join_group(options);
    FAIL("joined");
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::link);
    CHECK(std::string(e.what()) == "rank 1, rank 2 did not appear within 0 s");
  }
  options.rank = 2;
  options.join_timeout = 700ms;
  try {
    join_group(options);
    FAIL("joined");
  } catch (const Error& e) {
    CHECK_THAT(e.what(), ContainsSubstring("rank 0 was not ready"));
  }
}

TEST_CASE("joining stops when asked to", "[comm]") {
  GroupOptions options = options_for(GENERATE(0, 1), 2, free_rendezvous());
  options.cancelled = [] { return true; };
  try {
    join_group(options);
    FAIL("joined");
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::interrupted);
  }
}

TEST_CASE("strangers, garbage and a rank taken twice are turned away while the group forms", "[comm]") {
  const std::string rendezvous = free_rendezvous();
  std::string host_error, twin_error, stranger_error;
  std::thread host([&] {
    try {
      join_group(options_for(0, 3, rendezvous))->barrier(30s);
    } catch (const Error& e) {
      host_error = e.what();
    }
  });
  std::string first_error;
  std::thread first([&] {
    try {
      join_group(options_for(1, 3, rendezvous))->barrier(30s);
    } catch (const Error& e) {
      first_error = e.what();
    }
  });
  std::string reason;
  const auto dial = [&] {
    std::optional<comm::Socket> socket;
    while (!(socket = comm::try_connect(comm::parse_endpoint(rendezvous), 1000ms, reason)))
      std::this_thread::sleep_for(10ms);
    return std::move(*socket);
  };
  for (const std::string& garbage : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string("\xff\xff\xff\xff\x02", 5),
                                     std::string("\0\0\0\0\x02", 5), std::string("\x02\0\0\0\x02[]", 7)}) {
    const comm::Socket socket = dial();
    CHECK(write(socket.get(), garbage.data(), garbage.size()) == static_cast<ssize_t>(garbage.size()));
  }
  GroupOptions stranger = options_for(1, 3, rendezvous);
  stranger.token = "other job";
  try {
    join_group(stranger);
  } catch (const Error& e) {
    stranger_error = e.what();
  }
  CHECK_THAT(stranger_error, ContainsSubstring("the token of rank 1 is not the one of rank 0"));

  // Whichever of the two arrives second is refused; the other one stays.
  GroupOptions twin = options_for(1, 3, rendezvous);
  std::atomic<bool> twin_done = false;
  twin.cancelled = [&] { return twin_done.load(); };
  std::thread second([&] {
    try {
      join_group(twin)->barrier(30s);
    } catch (const Error& e) {
      twin_error = e.what();
    }
  });
  while (twin_error.empty() && first_error.empty()) std::this_thread::sleep_for(5ms);
  CHECK_THAT(twin_error + first_error, ContainsSubstring("rank 1 has already joined"));
  join_group(options_for(2, 3, rendezvous))->barrier(30s);
  for (auto* thread : {&host, &first, &second}) thread->join();
  CHECK(host_error.empty());
  CHECK(twin_error.empty() != first_error.empty());
}

TEST_CASE("a killed rank is noticed at once and named", "[comm]") {
  const std::string rendezvous = free_rendezvous();
  const RankProcess peer([&] { return follow_forever(options_for(1, 2, rendezvous)); });
  std::atomic<int> told = 0;
  GroupOptions options = options_for(0, 2, rendezvous);
  options.peer_timeout = 60s;  // so that only the closed connection can be what is noticed
  options.on_peer_lost = [&](const Error&) { ++told; };
  const auto communicator = join_group(options);
  float value = 1;
  for (int i = 0; i < 20; ++i) communicator->sum_in_rank_order(&value, 1);
  peer.send(SIGKILL);
  const auto begin = Clock::now();
  try {
    while (true) communicator->sum_in_rank_order(&value, 1);
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::peer_lost);
    CHECK(std::string(e.what()) == "rank 1 was lost: it closed its connection");
  }
  CHECK(Clock::now() - begin < 10s);
  while (told == 0) std::this_thread::sleep_for(1ms);
  CHECK(told == 1);
}

TEST_CASE("a rank that stands still is noticed within the peer timeout", "[comm]") {
  const std::string rendezvous = free_rendezvous();
  const RankProcess peer([&] { return follow_forever(options_for(1, 2, rendezvous)); });
  GroupOptions options = options_for(0, 2, rendezvous);
  options.peer_timeout = 1s;
  const auto communicator = join_group(options);
  float value = 1;
  communicator->sum_in_rank_order(&value, 1);
  CHECK(communicator->ranks()[1].alive);
  peer.send(SIGSTOP);
  const auto begin = Clock::now();
  try {
    while (true) communicator->sum_in_rank_order(&value, 1);
  } catch (const Error& e) {
    CHECK_THAT(e.what(), ContainsSubstring("rank 1 was lost: it has been silent for"));
  }
  CHECK(Clock::now() - begin < 10s);
  CHECK_FALSE(communicator->ranks()[1].alive);
}

TEST_CASE("every rank learns who was lost", "[comm]") {
  const std::string rendezvous = free_rendezvous();
  const RankProcess peer([&] { return follow_forever(options_for(2, 3, rendezvous)); });
  std::vector<std::string> errors(2);
  std::vector<std::thread> threads;
  std::atomic<bool> killed = false;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      try {
        const auto communicator = join_group(options_for(rank, 3, rendezvous));
        float value = 1;
        for (int i = 0;; ++i) {
          communicator->sum_in_rank_order(&value, 1);
          if (i == 10 && rank == 0 && !killed.exchange(true)) peer.send(SIGKILL);
        }
      } catch (const Error& e) {
        errors[rank] = e.what();
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK(errors[0] == "rank 2 was lost: it closed its connection");
  CHECK(errors[1] == "rank 2 was lost: it closed its connection");
}

TEST_CASE("a stop is passed on to all ranks and their leaving is no loss", "[comm]") {
  const int who_stops = GENERATE(0, 1);
  std::atomic<int> stops = 0, losses = 0;
  std::vector<std::atomic<bool>> stopped(3);
  const auto errors = run_ranks(
      3,
      [&](Communicator& c) {
        c.barrier(30s);
        if (c.rank() == who_stops) {
          c.announce_stop();
        } else {
          while (!stopped[c.rank()]) std::this_thread::sleep_for(1ms);
        }
      },
      [&](GroupOptions& options) {
        options.on_stop = [&, rank = options.rank] {
          ++stops;
          stopped[rank] = true;
        };
        options.on_peer_lost = [&](const Error&) { ++losses; };
      });
  CHECK(errors == std::vector<std::string>(3));
  CHECK(stops == 2);
  CHECK(losses == 0);
}

TEST_CASE("an exchange that is aborted from another thread ends", "[comm]") {
  const auto errors = run_ranks(2, [](Communicator& c) {
    c.barrier(30s);
    if (c.rank() == 1) {
      std::thread later([&] {
        std::this_thread::sleep_for(100ms);
        c.abort();
      });
      float value = 1;
      try {
        c.sum_in_rank_order(&value, 1);  // rank 0 never takes part
      } catch (const Error&) {
        later.join();
        throw;
      }
      later.join();
    } else {
      std::this_thread::sleep_for(1500ms);
    }
  });
  CHECK(errors[0] == "");
  CHECK_THAT(errors[1], ContainsSubstring("were ended"));
}

TEST_CASE("addresses with ports are read strictly", "[comm]") {
  CHECK(comm::parse_endpoint("node-a:29551").host == "node-a");
  CHECK(comm::parse_endpoint("[fe80::1]:5").host == "fe80::1");
  CHECK(comm::parse_endpoint("[fe80::1]:5").text() == "[fe80::1]:5");
  for (const char* bad :
       {"", ":", "host", "host:", ":5", "host:x", "host:65536", "host:-1", "fe80::1:5", "a b:5", "a:5 "})
    CHECK_THROWS_AS(comm::parse_endpoint(bad), Error);
}

}  // namespace
}  // namespace tandem
