#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace tandem::testing {

/// A request as it came over the wire; header names in lower case.
struct WireRequest {
  std::string method;
  std::string target;
  std::map<std::string, std::string> headers;

  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

/// What to send: bytes exactly as given, then what to do with the connection.
struct WireReply {
  enum class After { keep_alive, close, stall };
  std::string bytes;
  After after = After::keep_alive;
};

/// An HTTP/1.1 answer with a Content-Length that fits, unless `headers` brings one of its own.
std::string http_answer(int status, const std::string& body, const std::vector<std::string>& headers = {});

/// A server on a free port of 127.0.0.1 whose every byte is up to the test: it can lie, stall and break off, which no
/// HTTP library allows. A thread per connection.
class ScriptedServer {
 public:
  using Script = std::function<WireReply(const WireRequest&)>;

  explicit ScriptedServer(Script script);
  ~ScriptedServer();

  int port() const { return port_; }
  std::string endpoint() const { return "http://127.0.0.1:" + std::to_string(port_); }
  std::vector<WireRequest> requests() const;

 private:
  void accept_all();
  void serve(int connection);

  const Script script_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stopping_{false};
  mutable std::mutex mutex_;
  std::vector<WireRequest> requests_;
  std::vector<std::jthread> connections_;
  std::jthread acceptor_;
};

}  // namespace tandem::testing
