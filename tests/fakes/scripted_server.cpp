#include "tests/fakes/scripted_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

namespace tandem::testing {
namespace {

constexpr int kPollMs = 20;

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

WireRequest parse_request(const std::string& head) {
  WireRequest request;
  size_t line = head.find("\r\n");
  const std::string first = head.substr(0, line);
  request.method = first.substr(0, first.find(' '));
  const size_t begin = first.find(' ') + 1;
  request.target = first.substr(begin, first.rfind(' ') - begin);
  while (line + 2 < head.size()) {
    const size_t next = head.find("\r\n", line + 2);
    const std::string text = head.substr(line + 2, next - line - 2);
    if (const size_t colon = text.find(": "); colon != std::string::npos) {
      request.headers[lower(text.substr(0, colon))] = text.substr(colon + 2);
    }
    if (next == std::string::npos) break;
    line = next;
  }
  return request;
}

}  // namespace

std::string http_answer(int status, const std::string& body, const std::vector<std::string>& headers) {
  std::string text = "HTTP/1.1 " + std::to_string(status) + " Scripted\r\n";
  bool has_length = false;
  for (const std::string& header : headers) {
    text += header + "\r\n";
    has_length = has_length || lower(header).rfind("content-length:", 0) == 0;
  }
  if (!has_length) text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  return text + "\r\n" + body;
}

ScriptedServer::ScriptedServer(Script script) : script_(std::move(script)) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (listener_ < 0 || bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(listener_, 64) != 0 || getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw std::runtime_error("no port for the scripted server");
  }
  port_ = ntohs(address.sin_port);
  acceptor_ = std::jthread([this] { accept_all(); });
}

ScriptedServer::~ScriptedServer() {
  stopping_ = true;
  acceptor_.join();
  connections_.clear();
  close(listener_);
}

std::vector<WireRequest> ScriptedServer::requests() const {
  std::lock_guard lock(mutex_);
  return requests_;
}

void ScriptedServer::accept_all() {
  while (!stopping_) {
    pollfd waiting{listener_, POLLIN, 0};
    if (poll(&waiting, 1, kPollMs) <= 0) continue;
    const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection >= 0) connections_.emplace_back([this, connection] { serve(connection); });
  }
}

void ScriptedServer::serve(int connection) {
  std::string received;
  bool open = true;
  while (open && !stopping_) {
    pollfd waiting{connection, POLLIN, 0};
    if (poll(&waiting, 1, kPollMs) <= 0) continue;
    char buffer[4096];
    const ssize_t count = recv(connection, buffer, sizeof buffer, 0);
    if (count <= 0) break;
    received.append(buffer, static_cast<size_t>(count));
    if (received.front() == '\x16') break;  // a TLS greeting: a plain server does not understand it and hangs up
    const size_t end = received.find("\r\n\r\n");
    if (end == std::string::npos) continue;
    const WireRequest request = parse_request(received.substr(0, end));
    received.erase(0, end + 4);
    {
      std::lock_guard lock(mutex_);
      requests_.push_back(request);
    }
    const WireReply reply = script_(request);
    size_t sent = 0;
    while (sent < reply.bytes.size() && !stopping_) {
      const ssize_t written = send(connection, reply.bytes.data() + sent, reply.bytes.size() - sent, MSG_NOSIGNAL);
      if (written <= 0) break;
      sent += static_cast<size_t>(written);
    }
    if (reply.after == WireReply::After::stall) {
      // Until the client gives up, which shows as the end of what it sends.
      while (!stopping_) {
        pollfd hangup{connection, POLLIN, 0};
        if (poll(&hangup, 1, kPollMs) > 0 && recv(connection, buffer, sizeof buffer, 0) <= 0) break;
      }
    }
    open = reply.after == WireReply::After::keep_alive;
  }
  close(connection);
}

}  // namespace tandem::testing
