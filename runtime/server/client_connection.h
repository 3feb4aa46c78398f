#pragma once

#include <string>

namespace tandem {

/// The connection of the request that is being handled. cpp-httplib shows handlers no socket, yet a server that works
/// for minutes on one answer must see its client leave: so the socket is found among this process's descriptors by its
/// endpoints, which no other open connection shares.
class ClientConnection {
 public:
  /// @param remote_address  numeric, as cpp-httplib gives it
  ClientConnection(const std::string& remote_address, int remote_port, int local_port);

  /// The client closed its end, or the connection broke. False also when the socket was not found.
  bool gone() const;
  /// What the client still sends is not read as a further request: for bodies that were not read to their end.
  void stop_reading() const;

 private:
  int fd_ = -1;
};

/// Ends the connections that a listening port still has, so that idle clients cannot delay a stop.
void shut_down_connections(int local_port);

}  // namespace tandem
