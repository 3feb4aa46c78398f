#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::test {

struct HttpResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  ///< names in lower case
  std::string body;                            ///< chunks joined

  nlohmann::json json() const { return nlohmann::json::parse(body); }
  /// The `data:` fields of a stream of server-sent events.
  std::vector<std::string> events() const;
};

/// A connection on which a test decides about every byte, to a server of this machine.
class HttpConnection {
 public:
  explicit HttpConnection(int port);
  ~HttpConnection();
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  /// False when the server has closed the connection.
  bool send(std::string_view bytes) const;
  /// Reads on until `done` says so of all that arrived, or the server closes.
  const std::string& read_until(const std::function<bool(const std::string&)>& done);
  /// The next response, by its lengths; status 0 when the server closed without one.
  HttpResponse response();
  void close();

 private:
  bool read_some();

  int fd_;
  std::string received_;
};

HttpResponse http_get(int port, const std::string& path);
HttpResponse http_post(int port, const std::string& path, const std::string& body);
HttpResponse http_post(int port, const std::string& path, const nlohmann::json& body);
std::string post_text(const std::string& path, const std::string& body, const std::string& more_headers = "");

}  // namespace tandem::test
