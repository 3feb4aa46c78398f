// Stands in for tandem-runtime in tests of the orchestrator: the same flags, /health and answers, no model. Ranks find
// each other over the rendezvous port and end with exit code 6 when one goes away, as the real ones do.
//
// FAKE_RUNTIME holds orders, separated by ';', each "name=value" or "name=value@rank" for one rank only:
//   load_ms=500       time until ready                 exit_after_ms=200 with exit_code=3: ends by itself
//   hang=1            stays in `loading` for ever       crash_after_ms=200: ends with SIGABRT
//   answer=text       what it answers (default "42")   ignore_sigterm=1: has to be killed
//   finish=length     finish_reason                    leave_child=1: starts a process that leaves its session
//   silent_rank=1     bytes_exchanged stays 0          print_kib=100: writes that much output first
#include <arpa/inet.h>
#include <httplib.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "runtime/common/error.h"

namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using tandem::ErrorKind;
using tandem::exit_code;
using Clock = std::chrono::steady_clock;

using Flags = std::map<std::string, std::string>;

/// --name value pairs and lone --names, as `serve` takes them.
Flags parse_flags(int argc, char** argv) {
  Flags flags;
  for (int i = 2; i < argc; ++i) {
    const std::string name = argv[i];
    if (!name.starts_with("--")) {
      std::cerr << "error: unexpected argument `" << name << "`\n";
      std::exit(exit_code(ErrorKind::usage));
    }
    const bool has_value = i + 1 < argc && !std::string_view(argv[i + 1]).starts_with("--");
    flags[name.substr(2)] = has_value ? argv[++i] : "";
  }
  return flags;
}

std::string flag(const Flags& flags, const std::string& name, const std::string& fallback) {
  const auto found = flags.find(name);
  return found == flags.end() ? fallback : found->second;
}

/// The orders for this rank.
std::map<std::string, std::string> parse_orders(int rank) {
  std::map<std::string, std::string> orders;
  const char* text = std::getenv("FAKE_RUNTIME");
  std::istringstream parts(text == nullptr ? "" : text);
  for (std::string part; std::getline(parts, part, ';');) {
    const size_t equals = part.find('=');
    if (equals == std::string::npos) continue;
    std::string value = part.substr(equals + 1);
    if (const size_t at = value.rfind('@'); at != std::string::npos) {
      if (value.substr(at + 1) != std::to_string(rank)) continue;
      value.resize(at);
    }
    orders[part.substr(0, equals)] = value;
  }
  return orders;
}

struct Address {
  std::string host;
  int port = 0;
};

Address parse_address(const std::string& text) {
  const size_t colon = text.rfind(':');
  return {text.substr(0, colon), std::atoi(text.c_str() + colon + 1)};
}

sockaddr_in socket_address(const Address& address) {
  sockaddr_in result{};
  result.sin_family = AF_INET;
  result.sin_port = htons(static_cast<uint16_t>(address.port));
  inet_pton(AF_INET, address.host.c_str(), &result.sin_addr);
  return result;
}

std::atomic<bool> peer_lost = false;

/// Rank 0 listens, the others connect; each then only waits for the other end to close.
class Rendezvous {
 public:
  Rendezvous(int rank, int world_size, const Address& address) {
    if (world_size == 1) return;
    const sockaddr_in target = socket_address(address);
    if (rank == 0) {
      const int listener = socket(AF_INET, SOCK_STREAM, 0);
      const int on = 1;
      setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
      if (bind(listener, reinterpret_cast<const sockaddr*>(&target), sizeof target) != 0 || listen(listener, 16) != 0) {
        std::cerr << "error: cannot listen on the rendezvous port " << address.port << "\n";
        std::exit(exit_code(ErrorKind::link));
      }
      for (int peer = 1; peer < world_size; ++peer) peers_.push_back(accept(listener, nullptr, nullptr));
    } else {
      for (;;) {
        const int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, reinterpret_cast<const sockaddr*>(&target), sizeof target) == 0) {
          peers_.push_back(fd);
          break;
        }
        close(fd);
        std::this_thread::sleep_for(20ms);
      }
    }
    for (const int fd : peers_)
      std::thread([fd] {
        char byte = 0;
        while (read(fd, &byte, 1) > 0) {
        }
        peer_lost = true;
      }).detach();
  }

 private:
  std::vector<int> peers_;
};

std::atomic<bool> terminated = false;
void on_terminate(int) {
  terminated = true;
}

/// A process that slips out of its parent's group and session, as some engines' workers do.
void leave_child() {
  if (fork() != 0) return;
  setsid();
  if (fork() != 0) _exit(0);
  for (;;) pause();
}

class FakeServer {
 public:
  FakeServer(const Flags& flags, std::map<std::string, std::string> orders)
      : orders_(std::move(orders)),
        model_(flag(flags, "model-name", "fake")),
        context_(std::atoll(flag(flags, "context", "0").c_str())),
        world_size_(std::atoi(flag(flags, "world-size", "1").c_str())) {
    server_.Get("/health", [this](const httplib::Request&, httplib::Response& r) { health(r); });
    server_.Get("/v1/models", [this](const httplib::Request&, httplib::Response& r) {
      r.set_content(json{{"object", "list"}, {"data", {{{"id", model_}}}}}.dump(), "application/json");
    });
    server_.Post("/v1/chat/completions", [this](const httplib::Request&, httplib::Response& r) { chat(r); });
    const Address listen = parse_address(flag(flags, "listen", "127.0.0.1:0"));
    if (!server_.bind_to_port(listen.host.c_str(), listen.port)) {
      std::cerr << "error: port " << listen.port << " is in use\n";
      std::exit(exit_code(ErrorKind::launch));
    }
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::sleep_for(1ms);  // a stop before the start would be lost
  }

  ~FakeServer() {
    server_.stop();
    thread_.join();
  }

  std::atomic<double> progress = 0;

 private:
  std::string order(const std::string& name, const std::string& fallback) const {
    const auto found = orders_.find(name);
    return found == orders_.end() ? fallback : found->second;
  }

  void health(httplib::Response& response) const {
    const bool ready = progress >= 1;
    json ranks = json::array();
    for (int rank = 0; rank < world_size_; ++rank) {
      const bool silent = order("silent_rank", "") == std::to_string(rank);
      ranks.push_back({{"rank", rank}, {"alive", true}, {"bytes_exchanged", silent ? 0 : 1000 * answers_.load()}});
    }
    response.status = ready ? 200 : 503;
    response.set_content(json{{"phase", ready ? "ready" : "loading"},
                              {"progress", progress.load()},
                              {"model", model_},
                              {"context", context_},
                              {"world_size", world_size_},
                              {"version", "fake"},
                              {"ranks", ranks},
                              {"message", ""}}
                             .dump(),
                         "application/json");
  }

  void chat(httplib::Response& response) {
    ++answers_;
    const json message = {{"role", "assistant"}, {"content", order("answer", "42")}};
    response.set_content(
        json{{"object", "chat.completion"},
             {"choices", {{{"index", 0}, {"message", message}, {"finish_reason", order("finish", "stop")}}}}}
            .dump(),
        "application/json");
  }

  std::map<std::string, std::string> orders_;
  std::string model_;
  int64_t context_;
  int world_size_;
  std::atomic<int64_t> answers_ = 0;
  httplib::Server server_;
  std::thread thread_;
};

int serve(const Flags& flags) {
  const int rank = std::atoi(flag(flags, "rank", "0").c_str());
  const int world_size = std::atoi(flag(flags, "world-size", "1").c_str());
  const auto orders = parse_orders(rank);
  const auto number = [&](const std::string& name, int64_t fallback) {
    const auto found = orders.find(name);
    return found == orders.end() ? fallback : std::atoll(found->second.c_str());
  };
  if (number("ignore_sigterm", 0) != 0)
    signal(SIGTERM, SIG_IGN);
  else
    signal(SIGTERM, on_terminate);
  if (number("leave_child", 0) != 0) leave_child();
  for (int64_t line = 0; line < number("print_kib", 0); ++line) std::cout << std::string(1023, 'x') << "\n";
  std::cout << "fake runtime: rank " << rank << " of " << world_size << std::endl;

  const auto begin = Clock::now();
  const auto elapsed_ms = [&] {
    return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin).count();
  };
  std::unique_ptr<FakeServer> server;
  if (rank == 0) server = std::make_unique<FakeServer>(flags, orders);
  std::thread([&] {
    static const Rendezvous meet(rank, world_size, parse_address(flag(flags, "rendezvous", ":0")));
  }).detach();

  const int64_t load_ms = number("load_ms", 0);
  while (!terminated) {
    std::this_thread::sleep_for(5ms);
    if (server && number("hang", 0) == 0)
      server->progress =
          load_ms == 0 ? 1.0 : std::min(1.0, static_cast<double>(elapsed_ms()) / static_cast<double>(load_ms));
    if (peer_lost && !terminated) {
      std::cerr << "error: another rank went away" << std::endl;
      _exit(exit_code(ErrorKind::peer_lost));
    }
    if (const int64_t after = number("exit_after_ms", -1); after >= 0 && elapsed_ms() >= after) {
      std::cerr << "error: this rank was told to fail" << std::endl;
      _exit(static_cast<int>(number("exit_code", 1)));
    }
    if (const int64_t after = number("crash_after_ms", -1); after >= 0 && elapsed_ms() >= after) {
      std::cerr << "this rank was told to crash" << std::endl;
      signal(SIGABRT, SIG_DFL);
      kill(getpid(), SIGABRT);
    }
  }
  std::cout << "fake runtime: rank " << rank << " stops" << std::endl;
  server.reset();
  _exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  if (command == "serve") return serve(parse_flags(argc, argv));
  if (command == "version") {
    std::cout << json{{"version", "fake"}, {"devices", {"cpu"}}}.dump() << "\n";
    return 0;
  }
  std::cerr << "error: unknown command\n";
  return exit_code(ErrorKind::usage);
}
