#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/common/file.h"

namespace tandem::comm {

using Milliseconds = std::chrono::milliseconds;
using Deadline = std::chrono::steady_clock::time_point;

using Socket = FileDescriptor;

struct Endpoint {
  std::string host;  ///< name or numeric address, without brackets
  int port = 0;

  std::string text() const;  ///< "HOST:PORT" or "[V6]:PORT"
};

/// @throws Error  kind `usage`, for anything but HOST:PORT or [V6]:PORT
Endpoint parse_endpoint(std::string_view text);

/// @throws Error  kind `link`, when the address is not this machine's or the port is taken
Socket listen_on(const Endpoint& endpoint);

/// The port a listening socket got (port 0 asks for any).
int local_port(const Socket& socket);

/// The numeric address of this end of a connection.
std::string local_address(const Socket& socket);

/// Nothing when there is no listener yet; `reason` then says what the system answered.
std::optional<Socket> try_connect(const Endpoint& endpoint, Milliseconds timeout, std::string& reason);

/// What ranks say to each other beside the exchanges, each as one frame: u32 payload bytes, u8 type, payload.
enum class FrameType : uint8_t {
  greeting = 1,  ///< rank 0, at once: JSON, tells a rendezvous from any other service
  hello,         ///< JSON: who wants to join, with which settings
  welcome,       ///< all ranks are there
  refuse,        ///< JSON: why not
  addresses,     ///< one rank's, or all ranks', Gloo addresses
  beat,          ///< i64 bytes exchanged
  stop,          ///< asked to stop cleanly
  leave,         ///< done, in good order
  lost,          ///< JSON: rank 0 tells who went away
};

struct Frame {
  FrameType type;
  std::string payload;
};

/// One control connection, non-blocking underneath. What arrives is a stranger's until a hello was accepted: frames are
/// small and of known types, or the connection counts as closed.
class ControlLink {
 public:
  explicit ControlLink(Socket socket);

  const Socket& socket() const { return socket_; }

  /// Takes what the socket holds. False once the other side closed, failed, or sent what is no frame; frames that
  /// came before that can still be taken.
  bool receive();
  std::optional<Frame> next();

  /// False when the other side is gone, or took nothing for `patience`.
  bool send(FrameType type, std::string_view payload, Milliseconds patience = Milliseconds(2000));

  /// The next frame, or nothing at the deadline or when the connection ended (then closed() is true).
  std::optional<Frame> wait(Deadline deadline);
  bool closed() const { return closed_; }

 private:
  Socket socket_;
  std::string inbox_;
  bool closed_ = false;
};

}  // namespace tandem::comm
