#include "runtime/comm/control_link.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>

#include "runtime/common/error.h"

namespace tandem::comm {
namespace {

constexpr size_t kFrameHeader = 5;
constexpr uint32_t kMaxPayload = 1 << 20;

std::string system_error(int code) {
  return std::error_code(code, std::generic_category()).message();
}

struct AddressListDeleter {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using AddressList = std::unique_ptr<addrinfo, AddressListDeleter>;

AddressList resolve(const Endpoint& endpoint, bool passive, std::string& reason) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
  addrinfo* list = nullptr;
  const int code = getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &list);
  if (code != 0) {
    reason = gai_strerror(code);
    return nullptr;
  }
  return AddressList(list);
}

void set_blocking(int fd, bool blocking) {
  const int flags = fcntl(fd, F_GETFL);
  fcntl(fd, F_SETFL, blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK);
}

int milliseconds_until(Deadline deadline) {
  const auto left = std::chrono::ceil<Milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 3'600'000));
}

bool wait_for(int fd, short events, Deadline deadline) {
  pollfd entry{fd, events, 0};
  while (true) {
    const int ready = poll(&entry, 1, milliseconds_until(deadline));
    if (ready > 0) return true;
    if (ready == 0 && std::chrono::steady_clock::now() >= deadline) return false;
    if (ready < 0 && errno != EINTR) return false;
  }
}

}  // namespace

std::string Endpoint::text() const {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Endpoint parse_endpoint(std::string_view text) {
  const size_t colon = text.rfind(':');
  Endpoint endpoint;
  bool good = colon != std::string_view::npos && colon > 0;
  if (good) {
    std::string_view host = text.substr(0, colon), port = text.substr(colon + 1);
    const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
    if (bracketed) host = host.substr(1, host.size() - 2);
    const auto [end, code] = std::from_chars(port.data(), port.data() + port.size(), endpoint.port);
    good = code == std::errc() && end == port.data() + port.size() && endpoint.port >= 0 && endpoint.port <= 65535 &&
           (bracketed || host.find_first_of(":[]") == std::string_view::npos) &&
           host.find_first_of(std::string_view(" /\0", 3)) == std::string_view::npos;
    endpoint.host = host;
  }
  if (!good)
    throw Error(ErrorKind::usage, "`" + std::string(text) + "` is not an address with a port", "",
                "write HOST:PORT, or [V6ADDRESS]:PORT, with a port of 0 to 65535");
  return endpoint;
}

Socket listen_on(const Endpoint& endpoint) {
  std::string reason = "no address found";
  const AddressList list = resolve(endpoint, true, reason);
  for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) {
    Socket socket(::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol));
    if (!socket) {
      reason = system_error(errno);
      continue;
    }
    const int on = 1;
    setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(socket.get(), a->ai_addr, a->ai_addrlen) == 0 && listen(socket.get(), 64) == 0) return socket;
    reason = system_error(errno);
  }
  throw Error(ErrorKind::link, "cannot listen for the other ranks on " + endpoint.text() + ": " + reason,
              "--rendezvous", "give an address of this machine and a free port");
}

int local_port(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<sockaddr_in6&>(address).sin6_port);
  return ntohs(reinterpret_cast<sockaddr_in&>(address).sin_port);
}

std::string local_address(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  char host[NI_MAXHOST] = "";
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&address), length, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0)
    throw Error(ErrorKind::link, "the local address of a connection between ranks cannot be read");
  return host;
}

std::optional<Socket> try_connect(const Endpoint& endpoint, Milliseconds timeout, std::string& reason) {
  const Deadline deadline = std::chrono::steady_clock::now() + timeout;
  const AddressList list = resolve(endpoint, false, reason);
  for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) {
    Socket socket(::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol));
    if (!socket) {
      reason = system_error(errno);
      continue;
    }
    if (connect(socket.get(), a->ai_addr, a->ai_addrlen) == 0) return socket;
    if (errno != EINPROGRESS) {
      reason = system_error(errno);
      continue;
    }
    if (!wait_for(socket.get(), POLLOUT, deadline)) {
      reason = "no answer";
      continue;
    }
    int code = 0;
    socklen_t length = sizeof code;
    getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &code, &length);
    if (code == 0) return socket;
    reason = system_error(code);
  }
  return std::nullopt;
}

ControlLink::ControlLink(Socket socket) : socket_(std::move(socket)) {
  set_blocking(socket_.get(), false);
  const int on = 1;
  setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

bool ControlLink::receive() {
  char buffer[4096];
  while (!closed_) {
    const ssize_t got = recv(socket_.get(), buffer, sizeof buffer, 0);
    if (got > 0) {
      inbox_.append(buffer, static_cast<size_t>(got));
      if (inbox_.size() > kMaxPayload + kFrameHeader) break;  // enough for a frame: the caller takes it first
    } else if (got < 0 && errno == EINTR) {
      continue;
    } else {
      if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) closed_ = true;
      break;
    }
  }
  return !closed_;
}

std::optional<Frame> ControlLink::next() {
  if (inbox_.size() < kFrameHeader) return std::nullopt;
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(inbox_[i])); };
  const uint32_t size = byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24;
  const auto type = static_cast<FrameType>(byte(4));
  if (size > kMaxPayload || type < FrameType::greeting || type > FrameType::lost) {
    closed_ = true;
    inbox_.clear();
    return std::nullopt;
  }
  if (inbox_.size() < kFrameHeader + size) return std::nullopt;
  Frame frame{type, inbox_.substr(kFrameHeader, size)};
  inbox_.erase(0, kFrameHeader + size);
  return frame;
}

bool ControlLink::send(FrameType type, std::string_view payload, Milliseconds patience) {
  const auto size = static_cast<uint32_t>(payload.size());
  std::string bytes;
  for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(size >> shift & 255);
  bytes += static_cast<char>(type);
  bytes += payload;
  const Deadline deadline = std::chrono::steady_clock::now() + patience;
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t put = ::send(socket_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (put > 0) {
      sent += static_cast<size_t>(put);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_for(socket_.get(), POLLOUT, deadline)) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

std::optional<Frame> ControlLink::wait(Deadline deadline) {
  while (true) {
    if (auto frame = next()) return frame;
    if (closed_ || !wait_for(socket_.get(), POLLIN, deadline)) return std::nullopt;
    receive();
  }
}

}  // namespace tandem::comm
