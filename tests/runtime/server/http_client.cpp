#include "tests/runtime/server/http_client.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <utility>

namespace tandem::test {

std::vector<std::string> HttpResponse::events() const {
  std::vector<std::string> data;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    const std::string event = body.substr(at, end - at);
    if (event.starts_with("data: ")) data.push_back(event.substr(6));
    at = end == std::string::npos ? body.size() : end + 2;
  }
  return data;
}

HttpConnection::HttpConnection(int port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    throw std::runtime_error("no server on port " + std::to_string(port));
}

HttpConnection::~HttpConnection() {
  close();
}

void HttpConnection::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

bool HttpConnection::send(std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t put = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (put <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(put));
  }
  return true;
}

bool HttpConnection::read_some() {
  char buffer[4096];
  const ssize_t got = recv(fd_, buffer, sizeof buffer, 0);
  if (got <= 0) return false;
  received_.append(buffer, static_cast<size_t>(got));
  return true;
}

const std::string& HttpConnection::read_until(const std::function<bool(const std::string&)>& done) {
  while (!done(received_) && read_some()) {
  }
  return received_;
}

HttpResponse HttpConnection::response() {
  HttpResponse response;
  const auto head_end = [&] { return received_.find("\r\n\r\n"); };
  while (head_end() == std::string::npos)
    if (!read_some()) return response;
  const std::string head = received_.substr(0, head_end() + 2);
  received_.erase(0, head.size() + 2);
  response.status = std::atoi(head.c_str() + head.find(' '));
  for (size_t at = head.find("\r\n") + 2; at < head.size();) {
    const size_t end = head.find("\r\n", at), colon = head.find(':', at);
    std::string name = head.substr(at, colon - at);
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    response.headers[name] = head.substr(colon + 2, end - colon - 2);
    at = end + 2;
  }
  if (response.headers["transfer-encoding"] == "chunked") {
    while (true) {
      while (received_.find("\r\n") == std::string::npos)
        if (!read_some()) return response;
      const size_t size = std::strtoul(received_.c_str(), nullptr, 16), begin = received_.find("\r\n") + 2;
      while (received_.size() < begin + size + 2)
        if (!read_some()) return response;
      response.body += received_.substr(begin, size);
      received_.erase(0, begin + size + 2);
      if (size == 0) return response;
    }
  }
  const size_t length = std::strtoul(response.headers["content-length"].c_str(), nullptr, 10);
  while (received_.size() < length)
    if (!read_some()) break;
  response.body = received_.substr(0, length);
  received_.erase(0, length);
  return response;
}

HttpResponse http_get(int port, const std::string& path) {
  HttpConnection connection(port);
  connection.send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  return connection.response();
}

std::string post_text(const std::string& path, const std::string& body, const std::string& more_headers) {
  return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + more_headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

HttpResponse http_post(int port, const std::string& path, const std::string& body) {
  HttpConnection connection(port);
  connection.send(post_text(path, body, "Connection: close\r\n"));
  return connection.response();
}

HttpResponse http_post(int port, const std::string& path, const nlohmann::json& body) {
  return http_post(port, path, body.dump());
}

}  // namespace tandem::test
