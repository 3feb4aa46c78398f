#include "orchestrator/fetch/http.h"

#include <httplib.h>
#include <netdb.h>
#include <openssl/x509_vfy.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <exception>

#include "runtime/common/error.h"

namespace tandem {
namespace {

using std::chrono::steady_clock;

constexpr auto kWatchInterval = std::chrono::milliseconds(50);

/// Writing to a connection that the server closed must be an error code, not the end of the process. The disposition
/// of a signal belongs to the whole program, so only this thread's mask is changed, and only for a while.
class SigpipeBlock {
 public:
  SigpipeBlock() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~SigpipeBlock() {
    if (sigismember(&before_, SIGPIPE) == 1) return;
    const timespec no_wait{};
    while (sigtimedwait(&set_, nullptr, &no_wait) > 0) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SigpipeBlock(const SigpipeBlock&) = delete;
  SigpipeBlock& operator=(const SigpipeBlock&) = delete;

 private:
  sigset_t set_{};
  sigset_t before_{};
};

/// "" when the name resolves, else the resolver's reason.
std::string resolver_error(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (found != nullptr) freeaddrinfo(found);
  return code == 0 ? "" : gai_strerror(code);
}

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

}  // namespace

std::string HttpResponse::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (equal_ignoring_case(key, name)) return value;
  }
  return "";
}

int64_t HttpResponse::content_length() const {
  const std::string text = header("Content-Length");
  int64_t value = -1;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  return parsed.ec == std::errc() && parsed.ptr == text.data() + text.size() && value >= 0 ? value : -1;
}

struct HttpConnection::Client {
  std::unique_ptr<httplib::ClientImpl> http;
  httplib::SSLClient* tls = nullptr;  // the same object, when it is one
};

HttpWatch::HttpWatch(const RetryPolicy& policy, const std::atomic<bool>* cancel)
    : policy_(policy), cancel_(cancel), thread_([this](const std::stop_token& stop) { run(stop); }) {}

HttpWatch::~HttpWatch() = default;

bool HttpWatch::cancelled() const {
  return cancel_all_ || (cancel_ != nullptr && *cancel_);
}

void HttpWatch::run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    // Never notified: a wait that a stop request ends at once.
    ticks_.wait_for(lock, stop, kWatchInterval, [] { return false; });
    for (HttpConnection* connection : connections_) connection->check(steady_clock::now());
  }
}

HttpConnection::HttpConnection(HttpWatch& watch) : watch_(watch) {
  std::lock_guard lock(watch_.mutex_);
  watch_.connections_.push_back(this);
}

HttpConnection::~HttpConnection() {
  std::lock_guard lock(watch_.mutex_);
  std::erase(watch_.connections_, this);
}

void HttpConnection::check(steady_clock::time_point now) {
  std::lock_guard lock(mutex_);
  if (active_ == nullptr) return;
  if (watch_.cancelled()) {
    active_->http->stop();
    return;
  }
  const auto elapsed = now - window_start_;
  if (elapsed < watch_.policy().stall_timeout) return;
  const int64_t bytes = bytes_.load();
  const double needed =
      static_cast<double>(watch_.policy().floor_bytes_per_second) * std::chrono::duration<double>(elapsed).count();
  if (bytes == window_bytes_ || static_cast<double>(bytes - window_bytes_) < needed) {
    stalled_ = true;
    active_->http->stop();
  }
  window_bytes_ = bytes;
  window_start_ = now;
}

HttpConnection::Client& HttpConnection::client_for(const Url& url) {
  auto& client = clients_[url.origin()];
  if (client) return *client;
  if (clients_.size() > 8) {  // a server that redirects to a new name each time must not pile up connections
    clients_.clear();
    return client_for(url);
  }
  client = std::make_unique<Client>();
  if (url.scheme == "https") {
    auto tls = std::make_unique<httplib::SSLClient>(url.host, url.port);
    tls->enable_server_certificate_verification(true);
    client->tls = tls.get();
    client->http = std::move(tls);
  } else {
    client->http = std::make_unique<httplib::ClientImpl>(url.host, url.port);
  }
  client->http->set_keep_alive(true);
  client->http->set_tcp_nodelay(true);
  client->http->set_follow_location(false);
  client->http->set_decompress(false);
  client->http->set_url_encode(false);  // targets come encoded, and signed ones must not change
  client->http->set_connection_timeout(watch_.policy().connect_timeout);
  // The watch decides what a stall is; this is for the moments it cannot see, such as a TLS handshake.
  client->http->set_read_timeout(watch_.policy().stall_timeout + std::chrono::seconds(1));
  client->http->set_write_timeout(watch_.policy().stall_timeout + std::chrono::seconds(1));
  return *client;
}

HttpResponse HttpConnection::get(const Url& url, const Headers& headers, const OnHeaders& on_headers,
                                 const OnData& on_data) {
  HttpResponse response;
  if (watch_.cancelled()) {
    response.failure = HttpFailure::cancelled;
    return response;
  }
  Client& client = client_for(url);
  httplib::Headers sent;
  for (const auto& [name, value] : headers) sent.emplace(name, value);
  sent.emplace("Host", url.origin().substr(url.scheme.size() + 3));  // the library forgets an IPv6 address's brackets

  std::exception_ptr thrown;  // must not travel through the library's frames
  bool stopped = false;
  const auto guarded = [&](const auto& callback) {
    try {
      if (callback()) return true;
      stopped = true;
    } catch (...) {
      thrown = std::current_exception();
    }
    return false;
  };
  {
    std::lock_guard lock(mutex_);
    active_ = &client;
    bytes_ = 0;
    stalled_ = false;
    window_bytes_ = 0;
    window_start_ = steady_clock::now();
  }
  const SigpipeBlock sigpipe;
  const httplib::Result result = client.http->Get(
      url.target, sent,
      [&](const httplib::Response& head) {
        response.status = head.status;
        response.headers.assign(head.headers.begin(), head.headers.end());
        return guarded([&] { return on_headers(response); });
      },
      [&](const char* data, size_t size) {
        bytes_ += static_cast<int64_t>(size);
        return guarded([&] { return on_data(std::string_view(data, size)); });
      });
  {
    std::lock_guard lock(mutex_);
    active_ = nullptr;
  }
  if (thrown) std::rethrow_exception(thrown);
  if (stopped) {
    response.failure = HttpFailure::stopped;
  } else if (result) {
    // A body that ended early on a connection without a length is for the caller to notice.
    response.failure = HttpFailure::none;
  } else if (watch_.cancelled()) {
    response.failure = HttpFailure::cancelled;
  } else if (stalled_) {
    response.failure = HttpFailure::stalled;
  } else {
    switch (result.error()) {
      case httplib::Error::Connection:
      case httplib::Error::ConnectionTimeout:
        response.detail = resolver_error(url.host);
        response.failure = response.detail.empty() ? HttpFailure::connect : HttpFailure::dns;
        break;
      case httplib::Error::SSLConnection:
      case httplib::Error::SSLLoadingCerts:
      case httplib::Error::SSLServerVerification: {
        response.failure = HttpFailure::tls;
        const long code = client.tls == nullptr ? X509_V_OK : client.tls->get_openssl_verify_result();
        if (code != X509_V_OK) response.detail = X509_verify_cert_error_string(code);
        break;
      }
      default:
        response.failure = HttpFailure::closed;
    }
  }
  return response;
}

}  // namespace tandem
