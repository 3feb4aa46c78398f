#include "runtime/server/client_connection.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <charconv>
#include <filesystem>
#include <functional>
#include <optional>

namespace tandem {
namespace {

struct EndpointName {
  std::string address;
  int port = 0;
};

std::optional<EndpointName> endpoint(int fd, int (*get)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  if (get(fd, address, &length) != 0 || (storage.ss_family != AF_INET && storage.ss_family != AF_INET6))
    return std::nullopt;
  char host[NI_MAXHOST] = "";
  if (getnameinfo(address, length, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) return std::nullopt;
  const int port = storage.ss_family == AF_INET ? ntohs(reinterpret_cast<sockaddr_in*>(&storage)->sin_port)
                                                : ntohs(reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port);
  return EndpointName{host, port};
}

/// Calls `visit` for every connected socket of this process until it returns true.
void visit_connections(
    const std::function<bool(int fd, const EndpointName& remote, const EndpointName& local)>& visit) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    const std::string name = entry.path().filename();
    int fd = -1;
    std::from_chars(name.data(), name.data() + name.size(), fd);
    const auto remote = endpoint(fd, getpeername);
    const auto local = remote ? endpoint(fd, getsockname) : std::nullopt;
    if (local && visit(fd, *remote, *local)) return;
  }
}

}  // namespace

ClientConnection::ClientConnection(const std::string& remote_address, int remote_port, int local_port) {
  visit_connections([&](int fd, const EndpointName& remote, const EndpointName& local) {
    if (remote.port != remote_port || local.port != local_port || remote.address != remote_address) return false;
    fd_ = fd;
    return true;
  });
}

bool ClientConnection::gone() const {
  if (fd_ < 0) return false;
  pollfd entry{fd_, POLLRDHUP, 0};
  return poll(&entry, 1, 0) > 0;
}

void ClientConnection::stop_reading() const {
  if (fd_ >= 0) shutdown(fd_, SHUT_RD);
}

void shut_down_connections(int local_port) {
  visit_connections([&](int fd, const EndpointName&, const EndpointName& local) {
    if (local.port == local_port) shutdown(fd, SHUT_RDWR);
    return false;
  });
}

}  // namespace tandem
