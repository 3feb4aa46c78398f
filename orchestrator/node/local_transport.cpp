#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "orchestrator/node/process.h"
#include "orchestrator/node/transport.h"
#include "runtime/common/error.h"

namespace tandem::node {
namespace {

/// The child's stdin and stdout are one socket: shutdown() then ends a waiting read, which close() on a pipe does not.
class LocalTransport : public NodeTransport {
 public:
  explicit LocalTransport(const std::string& executable) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      throw Error(ErrorKind::node, std::string("cannot make a channel to the node helper: ") + std::strerror(errno));
    channel_ = FileDescriptor(ends[0]);
    const FileDescriptor theirs(ends[1]);
    // An anonymous file rather than a pipe: nobody has to keep reading it, so the helper can never block on it.
    stderr_ = FileDescriptor(memfd_create("node-helper-stderr", MFD_CLOEXEC));
    SpawnOptions options;
    options.argv = {executable.empty() ? own_executable() : executable, "node", "serve"};
    options.environment = own_environment();
    options.stdin_fd = theirs.get();
    options.stdout_fd = theirs.get();
    options.stderr_fd = stderr_.get();
    pid_ = spawn(options);
  }

  ~LocalTransport() override {
    LocalTransport::close();
    // The end of its input tells the helper to cancel what it does and to leave; it cleans up first.
    constexpr std::chrono::seconds kPatience{20};
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (waitpid(pid_, nullptr, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > deadline) {
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  std::string describe() const override { return "this machine"; }

  size_t read(char* buffer, size_t capacity) override {
    for (;;) {
      const ssize_t bytes = recv(channel_.get(), buffer, capacity, 0);
      if (bytes < 0 && errno == EINTR) continue;
      return bytes > 0 ? static_cast<size_t>(bytes) : 0;
    }
  }

  void write(std::string_view bytes) override {
    while (!bytes.empty()) {
      const ssize_t sent = send(channel_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent <= 0) throw Error(ErrorKind::node, std::string("the node helper is gone: ") + std::strerror(errno));
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }

  void close() override { shutdown(channel_.get(), SHUT_RDWR); }

  std::string diagnostics() override {
    constexpr off_t kShown = 2048;
    const off_t size = lseek(stderr_.get(), 0, SEEK_END);
    std::string text(static_cast<size_t>(std::clamp<off_t>(size, 0, kShown)), '\0');
    const ssize_t bytes = pread(stderr_.get(), text.data(), text.size(), std::max<off_t>(0, size - kShown));
    text.resize(static_cast<size_t>(std::max<ssize_t>(bytes, 0)));
    return printable(text);
  }

 private:
  FileDescriptor channel_;
  FileDescriptor stderr_;
  int pid_ = 0;
};

}  // namespace

std::unique_ptr<NodeTransport> start_local_node(const std::string& executable) {
  return std::make_unique<LocalTransport>(executable);
}

}  // namespace tandem::node
