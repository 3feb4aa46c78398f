// The probe's conversation, after the token (fixed length, so nothing is parsed):
//   asker     32 bytes of token                  answerer  1 byte: 'y'
//   asker     'p' + 7 bytes, `round_trips` times; the answerer returns each at once
//   asker     's' + 7 bytes, then blocks until its limits end: the first byte of each is 'd', of the last 'e'
//   answerer  16 bytes: bytes and nanoseconds it counted (little-endian), then blocks the other way, which the asker
//   counts asker     1 byte: it has read everything
#include "orchestrator/fabric/tcp_probe.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "runtime/common/error.h"
#include "runtime/common/units.h"

namespace tandem::fabric {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kTokenBytes = 32;
constexpr size_t kPingBytes = 8;
constexpr size_t kBlock = 256 << 10;

class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

struct AddressList {
  addrinfo* first = nullptr;
  AddressList(const std::string& address, int port) {
    addrinfo hints{};
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;  // names may resolve to loopback; addresses mean themselves
    hints.ai_socktype = SOCK_STREAM;
    if (getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &first) != 0 || first == nullptr)
      throw Error(ErrorKind::link, "`" + printable(address, 64) + "` is no numeric address", "",
                  "give the node's `link_address` as an IPv4 or IPv6 address");
  }
  ~AddressList() { freeaddrinfo(first); }
  AddressList(const AddressList&) = delete;
};

std::string at_address(const std::string& address, int port) {
  return address + " port " + std::to_string(port);
}

[[noreturn]] void fail(const std::string& what, const std::string& where) {
  throw Error(ErrorKind::link, what + ": " + std::strerror(errno), where);
}

/// One connection with a deadline over everything it does.
class Connection {
 public:
  Connection(Socket socket, Clock::time_point deadline, std::stop_token stop, std::string where)
      : socket_(std::move(socket)), deadline_(deadline), stop_(std::move(stop)), where_(std::move(where)) {
    const int on = 1;
    setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(socket_.get(), F_SETFL, fcntl(socket_.get(), F_GETFL) | O_NONBLOCK);
  }

  int get() const { return socket_.get(); }

  void wait(short events) {
    for (;;) {
      if (stop_.stop_requested()) throw Error(ErrorKind::interrupted, "the link probe was interrupted", where_);
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now()).count();
      if (left <= 0)
        throw Error(ErrorKind::link, "the peer stopped answering during the link probe", where_,
                    "check for a firewall between the nodes");
      pollfd entry{socket_.get(), events, 0};
      if (poll(&entry, 1, static_cast<int>(std::min<int64_t>(left, 100))) > 0) return;
    }
  }

  void send_all(const char* data, size_t size) {
    while (size > 0) {
      const ssize_t sent = send(socket_.get(), data, size, MSG_NOSIGNAL);
      if (sent < 0 && (errno == EAGAIN || errno == EINTR)) {
        wait(POLLOUT);
        continue;
      }
      if (sent <= 0) fail("the link broke while sending", where_);
      data += sent;
      size -= static_cast<size_t>(sent);
    }
  }

  void receive_all(char* data, size_t size) {
    while (size > 0) {
      const ssize_t got = recv(socket_.get(), data, size, 0);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        wait(POLLIN);
        continue;
      }
      if (got == 0) throw Error(ErrorKind::link, "the peer closed the link probe", where_);
      if (got < 0) fail("the link broke while receiving", where_);
      data += got;
      size -= static_cast<size_t>(got);
    }
  }

 private:
  Socket socket_;
  Clock::time_point deadline_;
  std::stop_token stop_;
  std::string where_;
};

void send_stream(Connection& peer, const ProbeLimits& limits) {
  std::vector<char> block(kBlock, 0);
  const auto begin = Clock::now();
  for (int64_t sent = kBlock;; sent += kBlock) {
    const bool last = sent >= limits.bytes || Clock::now() - begin >= limits.duration;
    block[0] = last ? 'e' : 'd';
    peer.send_all(block.data(), block.size());
    if (last) return;
  }
}

DirectionResult receive_stream(Connection& peer) {
  std::vector<char> block(kBlock);
  DirectionResult result;
  peer.wait(POLLIN);
  const auto begin = Clock::now();
  do {
    peer.receive_all(block.data(), block.size());
    result.bytes += static_cast<int64_t>(block.size());
  } while (block[0] == 'd');
  result.elapsed = std::max<std::chrono::nanoseconds>(Clock::now() - begin, std::chrono::nanoseconds(1));
  result.bits_per_second = 8e9 * static_cast<double>(result.bytes) / static_cast<double>(result.elapsed.count());
  return result;
}

void send_count(Connection& peer, const DirectionResult& result) {
  const int64_t values[2] = {result.bytes, result.elapsed.count()};
  char bytes[16];
  for (int i = 0; i < 16; ++i) bytes[i] = static_cast<char>(static_cast<uint64_t>(values[i / 8]) >> (8 * (i % 8)));
  peer.send_all(bytes, sizeof bytes);
}

DirectionResult receive_count(Connection& peer) {
  unsigned char bytes[16];
  peer.receive_all(reinterpret_cast<char*>(bytes), sizeof bytes);
  uint64_t values[2] = {0, 0};
  for (int i = 0; i < 16; ++i) values[i / 8] |= static_cast<uint64_t>(bytes[i]) << (8 * (i % 8));
  DirectionResult result;
  result.bytes = static_cast<int64_t>(values[0] & INT64_MAX);
  result.elapsed = std::chrono::nanoseconds(std::max<int64_t>(static_cast<int64_t>(values[1] & INT64_MAX), 1));
  result.bits_per_second = 8e9 * static_cast<double>(result.bytes) / static_cast<double>(result.elapsed.count());
  return result;
}

std::string fixed_token(const std::string& token) {
  std::string fixed = token.substr(0, kTokenBytes);
  fixed.resize(kTokenBytes, '-');
  return fixed;
}

std::string address_text(const sockaddr_storage& address, socklen_t length) {
  char host[64] = "";
  getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  return host;
}

/// Both ends of this machine: the kernel then never uses a cable, whatever addresses they carry.
bool is_loopback(int fd, std::string& local_address) {
  sockaddr_storage local{}, remote{};
  socklen_t local_length = sizeof local, remote_length = sizeof remote;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&local), &local_length) != 0) return false;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&remote), &remote_length) != 0) return false;
  local_address = address_text(local, local_length);
  const std::string peer = address_text(remote, remote_length);
  return peer == local_address || peer.starts_with("127.") || peer == "::1";
}

Socket connect_to(const std::string& source, const std::string& address, int port, Clock::time_point deadline,
                  const std::stop_token& stop) {
  const AddressList target(address, port);
  Socket socket(::socket(target.first->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const std::string where = at_address(address, port);
  if (socket.get() < 0) fail("cannot make a socket", where);
  if (!source.empty()) {
    const AddressList from(source, 0);
    if (bind(socket.get(), from.first->ai_addr, from.first->ai_addrlen) != 0)
      fail("cannot send from " + printable(source, 64), where);
  }
  if (connect(socket.get(), target.first->ai_addr, target.first->ai_addrlen) != 0 && errno != EINPROGRESS)
    fail("cannot reach the peer", where);
  for (;;) {
    if (stop.stop_requested()) throw Error(ErrorKind::interrupted, "the link probe was interrupted", where);
    if (Clock::now() > deadline)
      throw Error(ErrorKind::link, "the peer does not answer", where, "check for a firewall between the nodes");
    pollfd entry{socket.get(), POLLOUT, 0};
    if (poll(&entry, 1, 50) <= 0) continue;
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error == 0) return socket;
    errno = error;
    fail("cannot reach the peer", where);
  }
}

}  // namespace

struct TcpProbeServer::State {
  Socket listener;
  std::string address, token;
  int port = 0;
};

TcpProbeServer::TcpProbeServer(const std::string& address, std::string token) : state_(std::make_unique<State>()) {
  const AddressList own(address, 0);
  state_->address = address;
  state_->token = fixed_token(token);
  state_->listener = Socket(::socket(own.first->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int fd = state_->listener.get();
  if (fd < 0 || bind(fd, own.first->ai_addr, own.first->ai_addrlen) != 0 || listen(fd, 8) != 0)
    throw Error(ErrorKind::link, std::string("cannot listen there: ") + std::strerror(errno), address,
                "give an address of this node as its `link_address`");
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &length);
  state_->port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                                   : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
}

TcpProbeServer::~TcpProbeServer() = default;

int TcpProbeServer::port() const {
  return state_->port;
}

void TcpProbeServer::serve(const ProbeLimits& limits, std::stop_token stop) {
  const auto deadline = Clock::now() + limits.timeout;
  const std::string where = at_address(state_->address, state_->port);
  for (;;) {
    if (stop.stop_requested()) throw Error(ErrorKind::interrupted, "the link probe was interrupted", where);
    if (Clock::now() > deadline)
      throw Error(ErrorKind::link, "no peer came to probe the link", where, "check for a firewall between the nodes");
    pollfd entry{state_->listener.get(), POLLIN, 0};
    if (poll(&entry, 1, 50) <= 0) continue;
    Socket accepted(accept4(state_->listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (accepted.get() < 0) continue;
    // A stranger gets a second to show the token, so that it cannot use up the peer's time.
    const auto greeting_deadline = std::min(deadline, Clock::now() + std::chrono::seconds(1));
    std::string shown(kTokenBytes, '\0');
    try {
      Connection stranger(Socket(fcntl(accepted.get(), F_DUPFD_CLOEXEC, 0)), greeting_deadline, stop, where);
      stranger.receive_all(shown.data(), shown.size());
    } catch (const Error& e) {
      if (e.kind() == ErrorKind::interrupted) throw;
      continue;
    }
    if (shown != state_->token) continue;

    Connection peer(std::move(accepted), deadline, stop, where);
    peer.send_all("y", 1);
    char message[kPingBytes];
    for (peer.receive_all(message, sizeof message); message[0] == 'p'; peer.receive_all(message, sizeof message))
      peer.send_all(message, sizeof message);
    send_count(peer, receive_stream(peer));
    send_stream(peer, limits);
    char end = 0;
    peer.receive_all(&end, 1);  // until then the asker still reads
    return;
  }
}

LinkReport probe_tcp(const std::string& source_address, const std::string& address, int port, const std::string& token,
                     const ProbeLimits& limits, std::stop_token stop) {
  const auto deadline = Clock::now() + limits.timeout;
  const std::string where = at_address(address, port);
  Connection peer(connect_to(source_address, address, port, deadline, stop), deadline, stop, where);
  LinkReport report;
  report.to.address = address;
  report.transport = is_loopback(peer.get(), report.from.address) ? Transport::loopback : Transport::tcp;

  peer.send_all(fixed_token(token).data(), kTokenBytes);
  char answer = 0;
  peer.receive_all(&answer, 1);
  if (answer != 'y') throw Error(ErrorKind::link, "another program answers there", where);

  std::vector<std::chrono::nanoseconds> one_way;
  char ping[kPingBytes] = {'p'};
  for (int i = 0; i < std::max(limits.round_trips, 1); ++i) {
    const auto begin = Clock::now();
    peer.send_all(ping, sizeof ping);
    peer.receive_all(ping, sizeof ping);
    one_way.push_back((Clock::now() - begin) / 2);
  }
  std::sort(one_way.begin(), one_way.end());
  report.round_trips = static_cast<int>(one_way.size());
  report.latency_min = one_way.front();
  report.latency_median = one_way[one_way.size() / 2];

  ping[0] = 's';
  peer.send_all(ping, sizeof ping);
  send_stream(peer, limits);
  report.forward = receive_count(peer);
  report.backward = receive_stream(peer);
  peer.send_all("y", 1);
  return report;
}

}  // namespace tandem::fabric
