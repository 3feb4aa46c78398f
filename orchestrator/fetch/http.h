#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "orchestrator/fetch/retry.h"
#include "orchestrator/fetch/url.h"

namespace tandem {

/// Why a request brought no complete answer.
enum class HttpFailure {
  none,       ///< the answer is complete, whatever its status
  dns,        ///< the host name has no address
  connect,    ///< nothing answers at the address
  tls,        ///< no secure connection: certificate, protocol
  stalled,    ///< too few bytes for too long
  closed,     ///< the connection ended before the answer did
  stopped,    ///< a callback said so
  cancelled,  ///< the watch's cancel flag is set
};

struct HttpResponse {
  int status = 0;  ///< 0 when no answer arrived
  std::vector<std::pair<std::string, std::string>> headers;
  HttpFailure failure = HttpFailure::none;
  std::string detail;  ///< of the failure, for people

  std::string header(std::string_view name) const;  ///< "" when absent; names compare without case
  int64_t content_length() const;                   ///< -1 when absent or not a number
};

class HttpConnection;

/// One thread that watches the requests of several connections: it breaks those that stall or were cancelled.
/// A read time-out alone does not: a server that sends one byte a second would hold a download for ever.
class HttpWatch {
 public:
  explicit HttpWatch(const RetryPolicy& policy, const std::atomic<bool>* cancel = nullptr);
  ~HttpWatch();

  const RetryPolicy& policy() const { return policy_; }
  bool cancelled() const;
  /// Breaks all requests under way and lets no new one start.
  void cancel_all() { cancel_all_ = true; }

 private:
  friend class HttpConnection;
  void run(const std::stop_token& stop);

  const RetryPolicy policy_;
  const std::atomic<bool>* cancel_;
  std::atomic<bool> cancel_all_{false};
  std::mutex mutex_;
  std::condition_variable_any ticks_;
  std::vector<HttpConnection*> connections_;
  std::jthread thread_;
};

/// GET requests of one thread, over kept-alive connections to a few servers. Adapter of the HTTP library.
class HttpConnection {
 public:
  using Headers = std::vector<std::pair<std::string, std::string>>;
  /// Called with status and headers, before the body. False ends the request (HttpFailure::stopped).
  using OnHeaders = std::function<bool(const HttpResponse&)>;
  /// Called with the body as it arrives. False ends the request (HttpFailure::stopped).
  using OnData = std::function<bool(std::string_view)>;

  explicit HttpConnection(HttpWatch& watch);
  ~HttpConnection();
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  /// Does not follow redirects and does not retry. What a callback throws comes out of here.
  HttpResponse get(const Url& url, const Headers& headers, const OnHeaders& on_headers, const OnData& on_data);

 private:
  friend class HttpWatch;
  struct Client;
  Client& client_for(const Url& url);
  void check(std::chrono::steady_clock::time_point now);  // by the watch's thread

  HttpWatch& watch_;
  std::map<std::string, std::unique_ptr<Client>> clients_;  // by origin
  std::mutex mutex_;                                        // guards active_ and the window
  Client* active_ = nullptr;
  std::atomic<int64_t> bytes_{0};  // of the request under way
  std::atomic<bool> stalled_{false};
  int64_t window_bytes_ = 0;
  std::chrono::steady_clock::time_point window_start_;
};

}  // namespace tandem
