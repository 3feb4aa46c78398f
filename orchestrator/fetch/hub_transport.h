#pragma once

#include <functional>
#include <random>
#include <string>
#include <string_view>

#include "orchestrator/fetch/http.h"
#include "orchestrator/fetch/hub.h"
#include "runtime/common/error.h"

namespace tandem {

/// What a request to the hub is about: for the sentences of its errors.
struct HubSubject {
  std::string repo;
  std::string revision;
  std::string path;  ///< "" for model info and lists
};

/// The end of a chain of redirects.
struct HubAnswer {
  HttpResponse response;
  Url url;                  ///< that gave `response`
  bool token_sent = false;  ///< to the endpoint
  std::string commit;       ///< X-Repo-Commit, from any answer of the endpoint; "" when absent
  std::string etag;        ///< X-Linked-Etag, else ETag, of the endpoint's first answer, without quotes; "" when absent
  std::string error_body;  ///< the start of the body, when the status is not 2xx
};

/// Requests to one endpoint by one thread: where redirects are followed and the token's rules are kept (see HubClient).
class HubTransport {
 public:
  HubTransport(const HubOptions& hub, HttpWatch& watch);

  const Url& endpoint() const { return endpoint_; }

  /// GET, redirects followed. The callbacks see 2xx answers only.
  /// @throws Error (fetch) for a redirect that must not be followed
  HubAnswer get(const Url& url, const HttpConnection::Headers& headers, const HttpConnection::OnHeaders& on_headers,
                const HttpConnection::OnData& on_data);

 private:
  std::string token_;
  Url endpoint_;
  HttpConnection connection_;
};

/// True when the same request may well succeed a little later.
bool is_temporary(const HubAnswer& answer);

/// One sentence for people about a failed answer: "hub.example answered 503".
std::string describe_failure(const HubAnswer& answer, const RetryPolicy& policy);

/// The error that ends the command after `answer`: what, where, and what to do about it.
Error hub_error(const HubAnswer& answer, const HubOptions& hub, const HubSubject& subject, int tries);

/// Counts the failures of one task and says how long to wait.
class Retrier {
 public:
  explicit Retrier(const RetryPolicy& policy) : policy_(policy), random_(std::random_device{}()) {}

  /// After a failure: the time to wait before the next try, or nothing when it is time to give up.
  std::optional<std::chrono::milliseconds> next_wait(const HubAnswer& answer);
  /// New bytes arrived: the counting starts anew.
  void reset() { tries_ = retry_after_tries_ = 0; }
  int tries() const { return tries_ + retry_after_tries_; }

 private:
  const RetryPolicy policy_;
  std::minstd_rand random_;
  int tries_ = 0;
  int retry_after_tries_ = 0;
};

}  // namespace tandem
