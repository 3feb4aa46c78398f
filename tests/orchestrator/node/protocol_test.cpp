#include "orchestrator/node/protocol.h"

#include <sys/socket.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "orchestrator/node/client.h"
#include "orchestrator/node/process.h"
#include "orchestrator/node/server.h"
#include "tests/catch.h"

using namespace tandem;
using namespace tandem::node;
using nlohmann::json;
using namespace std::chrono_literals;

namespace {

/// One end of a socket pair as a transport; the test holds the other.
class PairTransport : public NodeTransport {
 public:
  explicit PairTransport(int fd) : fd_(fd) {}
  std::string describe() const override { return "a test"; }
  size_t read(char* buffer, size_t capacity) override {
    const ssize_t bytes = recv(fd_.get(), buffer, capacity, 0);
    return bytes > 0 ? static_cast<size_t>(bytes) : 0;
  }
  void write(std::string_view bytes) override {
    if (send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(bytes.size()))
      throw Error(ErrorKind::node, "the other end is gone");
  }
  void close() override { shutdown(fd_.get(), SHUT_RDWR); }
  std::string diagnostics() override { return ""; }

 private:
  FileDescriptor fd_;
};

struct Pair {
  FileDescriptor ours, theirs;
  Pair() {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    ours = FileDescriptor(ends[0]);
    theirs = FileDescriptor(ends[1]);
  }
  std::unique_ptr<NodeTransport> transport() { return std::make_unique<PairTransport>(dup(ours.get())); }
  void say(const std::string& text) { REQUIRE(write(theirs.get(), text.data(), text.size()) > 0); }
};

/// What connecting to a node that says `greeting` throws.
Error connection_error(const std::string& greeting, bool hang_up = true) {
  Pair pair;
  const std::jthread node([&] {  // a long greeting blocks until it is read, or until the controller hangs up
    send(pair.theirs.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL);
    if (hang_up) shutdown(pair.theirs.get(), SHUT_WR);
  });
  ClientOptions options;
  options.handshake_timeout = hang_up ? 5000ms : 50ms;
  try {
    NodeClient client("n1", pair.transport(), options);
  } catch (const Error& e) {
    return e;
  }
  FAIL("the connection was accepted");
  return Error(ErrorKind::internal, "");
}

/// A real server on its own thread, with a few methods.
struct ServedNode {
  Pair pair;
  Methods methods;
  std::jthread thread;
  std::unique_ptr<NodeClient> client;

  ServedNode() {
    methods["echo"] = [](const Request& r) { return r.params; };
    methods["count"] = [](const Request& r) {
      for (int i = 0; i < r.params.at("to").get<int>(); ++i) r.send_event({{"i", i}});
      return json{{"done", true}};
    };
    methods["wait"] = [](const Request& r) -> json {
      while (!r.stop.stop_requested()) std::this_thread::sleep_for(1ms);
      throw Error(ErrorKind::interrupted, "stopped waiting");
    };
    methods["fail"] = [](const Request&) -> json { throw Error(ErrorKind::split, "no space", "/disk", "free some"); };
    thread = std::jthread([this] { serve(pair.theirs.get(), pair.theirs.get(), methods); });
    client = std::make_unique<NodeClient>("n1", pair.transport());
  }
  ~ServedNode() {
    client.reset();
    shutdown(pair.ours.get(), SHUT_RDWR);
  }
};

}  // namespace

TEST_CASE("a node of another version is refused and both versions are named", "[node]") {
  Hello hello = own_hello();
  hello.version = "9.9.9";
  const Error error = connection_error(format_line(to_json(hello)));
  CHECK(error.kind() == ErrorKind::node);
  CHECK_THAT(error.what(), ContainsSubstring("9.9.9") && ContainsSubstring(program_version()));
  CHECK(error.where() == "node n1");
}

TEST_CASE("a login banner before the greeting is skipped", "[node]") {
  Pair pair;
  pair.say("Welcome to node one!\nLast login: never\n" + format_line(to_json(own_hello())));
  const NodeClient client("n1", pair.transport());
  CHECK(client.hello().version == program_version());
}

TEST_CASE("what a node says instead of a greeting is quoted", "[node]") {
  CHECK_THAT(connection_error("bash: tandem: command not found\n").what(), ContainsSubstring("command not found"));
  CHECK_THAT(connection_error("{\"hello\": 1}\n").what(), ContainsSubstring("greeting"));
  CHECK_THAT(connection_error("", /*hang_up=*/false).what(), ContainsSubstring("no greeting came within 50 ms"));
  CHECK_THAT(connection_error(std::string(kMaxLineBytes + 1, 'x')).what(), ContainsSubstring("longer than"));
}

TEST_CASE("a call brings its events in order and then its result", "[node]") {
  ServedNode node;
  std::vector<int> seen;
  const json result = node.client->call("count", {{"to", 10'000}},
                                        [&](const json& event) { seen.push_back(event.at("i").get<int>()); });
  CHECK(result.at("done") == true);
  REQUIRE(seen.size() == 10'000);
  CHECK(std::is_sorted(seen.begin(), seen.end()));
}

TEST_CASE("an error keeps its kind and parts and gains the node's name", "[node]") {
  ServedNode node;
  try {
    node.client->call("fail", json::object());
    FAIL("no error");
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::split);
    CHECK(std::string(e.what()) == "no space");
    CHECK(e.where() == "node n1: /disk");
    CHECK(e.fix() == "free some");
  }
  CHECK_THROWS_WITH(node.client->call("fetsh", json::object()), ContainsSubstring("no method `fetsh`"));
}

TEST_CASE("a cancelled call ends and the connection goes on", "[node]") {
  ServedNode node;
  std::stop_source stop;
  std::jthread later([&] {
    std::this_thread::sleep_for(20ms);
    stop.request_stop();
  });
  CHECK_THROWS_WITH(node.client->call("wait", json::object(), {}, stop.get_token()),
                    ContainsSubstring("stopped waiting"));
  CHECK(node.client->call("echo", {{"a", 1}}).at("a") == 1);
}

TEST_CASE("calls run side by side", "[node]") {
  ServedNode node;
  std::stop_source stop;
  std::jthread waiting(
      [&] { CHECK_THROWS_AS(node.client->call("wait", json::object(), {}, stop.get_token()), Error); });
  for (int i = 0; i < 100; ++i) CHECK(node.client->call("echo", {{"i", i}}).at("i") == i);
  stop.request_stop();
}

TEST_CASE("what an event handler throws cancels the call and reaches the caller", "[node]") {
  ServedNode node;
  CHECK_THROWS_WITH(
      node.client->call("count", {{"to", 5}}, [](const json&) { throw Error(ErrorKind::fetch, "enough"); }), "enough");
  CHECK(node.client->call("echo", {{"a", 2}}).at("a") == 2);
}

TEST_CASE("a node answers garbage with an error and lives on", "[node]") {
  Pair pair;
  const Methods methods = {{"echo", [](const Request& r) { return r.params; }}};
  std::jthread thread([&] { serve(pair.theirs.get(), pair.theirs.get(), methods); });
  LineSplitter lines;
  const auto next = [&] {
    for (;;) {
      if (auto line = lines.next()) return json::parse(*line);
      char block[4096];
      const ssize_t bytes = read(pair.ours.get(), block, sizeof block);
      REQUIRE(bytes > 0);
      lines.add(std::string_view(block, static_cast<size_t>(bytes)));
    }
  };
  const auto say = [&](const std::string& text) {
    REQUIRE(write(pair.ours.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  };
  CHECK(next().contains("tandem_node"));
  for (const std::string& garbage :
       std::vector<std::string>{"not json", "[1]", "{\"id\": \"x\"}", "{}", "\x1b[31m", std::string(5000, '[')}) {
    say(garbage + "\n");
    CHECK(next().contains("error"));
  }
  say("{\"id\": 1}\n");
  CHECK(next().at("error").at("what") == "a request without a method");
  say("{\"id\": 2, \"method\": \"echo\", \"params\": 7}\n");
  CHECK(next().at("error").at("what") == "`params` is no object");
  say("{\"id\": 3, \"method\": \"echo\", \"params\": {\"b\": 1}}\n");
  CHECK(next().at("result").at("b") == 1);
  shutdown(pair.ours.get(), SHUT_WR);
}

TEST_CASE("when a node vanishes its waiting calls end with an error", "[node]") {
  Pair pair;
  pair.say(format_line(to_json(own_hello())));
  NodeClient client("n1", pair.transport());
  std::jthread later([&] {
    std::this_thread::sleep_for(20ms);
    shutdown(pair.theirs.get(), SHUT_RDWR);
  });
  CHECK_THROWS_WITH(client.call("anything", json::object()), ContainsSubstring("ended unexpectedly"));
}

TEST_CASE("a node that goes silent is given up", "[node]") {
  Pair pair;
  pair.say(format_line(to_json(own_hello())));
  ClientOptions options;
  options.silence_timeout = 50ms;
  NodeClient client("n1", pair.transport(), options);
  CHECK_THROWS_WITH(client.call("fetch", json::object()), ContainsSubstring("silent"));
}

TEST_CASE("the end of the controller's stream cancels what runs on the node", "[node]") {
  Pair pair;
  std::atomic<bool> cancelled = false;
  const Methods methods = {{"wait", [&](const Request& r) {
                              while (!r.stop.stop_requested()) std::this_thread::sleep_for(1ms);
                              cancelled = true;
                              return json::object();
                            }}};
  std::jthread thread([&] { serve(pair.theirs.get(), pair.theirs.get(), methods); });
  const std::string line = "{\"id\": 1, \"method\": \"wait\"}\n";
  REQUIRE(write(pair.ours.get(), line.data(), line.size()) > 0);
  shutdown(pair.ours.get(), SHUT_WR);
  thread.join();
  CHECK(cancelled);
}
