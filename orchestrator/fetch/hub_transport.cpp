#include "orchestrator/fetch/hub_transport.h"

#include <algorithm>
#include <utility>

namespace tandem {
namespace {

constexpr int kMaxRedirects = 5;
constexpr size_t kMaxErrorBody = 16 * 1024;

std::string unquoted_etag(std::string value) {
  if (value.rfind("W/", 0) == 0) value.erase(0, 2);
  if (value.size() >= 2 && value.front() == '"' && value.back() == '"') value = value.substr(1, value.size() - 2);
  return value.size() <= 256 ? value : "";
}

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

}  // namespace

HubTransport::HubTransport(const HubOptions& hub, HttpWatch& watch)
    : token_(hub.token), endpoint_(parse_url(hub.endpoint)), connection_(watch) {}

HubAnswer HubTransport::get(const Url& start, const HttpConnection::Headers& headers,
                            const HttpConnection::OnHeaders& on_headers, const HttpConnection::OnData& on_data) {
  HubAnswer answer;
  answer.url = start;
  for (int hop = 0; hop <= kMaxRedirects; ++hop) {
    const bool at_endpoint = answer.url.same_origin(endpoint_);
    HttpConnection::Headers sent = headers;
    sent.emplace_back("User-Agent", "tandem");
    sent.emplace_back("Accept-Encoding", "identity");  // hashes and ranges are those of the plain bytes
    if (at_endpoint && !token_.empty() && (answer.url.scheme == "https" || answer.url.is_loopback())) {
      sent.emplace_back("Authorization", "Bearer " + token_);
      answer.token_sent = true;
    }
    bool good = false;
    answer.error_body.clear();
    answer.response = connection_.get(
        answer.url, sent,
        [&](const HttpResponse& head) {
          good = head.status >= 200 && head.status < 300;
          if (at_endpoint) {
            if (answer.commit.empty()) answer.commit = head.header("X-Repo-Commit");
            if (answer.etag.empty()) answer.etag = unquoted_etag(head.header("X-Linked-Etag"));
            if (answer.etag.empty()) answer.etag = unquoted_etag(head.header("ETag"));
          }
          return !good || on_headers(head);
        },
        [&](std::string_view data) {
          if (good) return on_data(data);
          answer.error_body += data.substr(0, kMaxErrorBody - answer.error_body.size());
          return answer.error_body.size() < kMaxErrorBody;
        });
    if (!is_redirect(answer.response.status)) return answer;

    const std::string location = answer.response.header("Location");
    if (location.empty()) return answer;
    Url next = resolve_location(answer.url, location);
    if (answer.url.scheme == "https" && next.scheme == "http") {
      throw Error(ErrorKind::fetch, "a redirect leads from https to plain http, which is not followed", next.display(),
                  "tell the server's owner; or set HF_ENDPOINT to another server");
    }
    answer.url = std::move(next);
  }
  throw Error(ErrorKind::fetch, "more than " + std::to_string(kMaxRedirects) + " redirects in a row", start.display(),
              "check HF_ENDPOINT; the server sends requests in a circle");
}

std::optional<std::chrono::milliseconds> Retrier::next_wait(const HubAnswer& answer) {
  // A server that says when to come back is alive: it gets more patience than one that is silent.
  const auto asked = parse_retry_after(answer.response.header("Retry-After"), std::chrono::system_clock::now());
  const bool says_when = asked && (answer.response.status == 429 || answer.response.status == 503);
  if (says_when) {
    if (*asked > policy_.longest_retry_after || ++retry_after_tries_ > policy_.max_retry_after) return std::nullopt;
    return std::max<std::chrono::milliseconds>(*asked, policy_.first_wait);
  }
  if (++tries_ >= policy_.max_tries) return std::nullopt;
  const double random = static_cast<double>(random_() - std::minstd_rand::min()) /
                        static_cast<double>(std::minstd_rand::max() - std::minstd_rand::min() + 1.0);
  return policy_.wait_before(tries_, random);
}

}  // namespace tandem
