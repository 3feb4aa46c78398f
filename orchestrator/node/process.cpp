#include "orchestrator/node/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <boost/process.hpp>
#include <boost/process/extend.hpp>
#include <boost/process/posix.hpp>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>

#include "runtime/common/error.h"

namespace tandem::node {
namespace {

namespace bp = boost::process;

/// What happens between fork and exec. Only async-signal-safe calls: other threads' locks may be held for ever here.
struct ChildSetup : bp::extend::handler {
  const SpawnOptions* options;
  char** environment;
  pid_t parent;

  ChildSetup(const SpawnOptions* o, char** e, pid_t p) : options(o), environment(e), parent(p) {}

  // Boost 1.74's own environment reads past the end of short entries when it looks up a name, so it gets the finished
  // array instead.
  template <typename Executor>
  void on_setup(Executor& executor) const {
    executor.env = environment;
  }

  template <typename Sequence>
  void on_exec_setup(Sequence&) const {
    if (options->new_session) setsid();
    if (options->dies_with_parent) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(127);  // it died before the request above took effect
    }
    if (options->oom_score_adj != 0) {
      char digits[16];
      const auto end = std::to_chars(digits, digits + sizeof digits, options->oom_score_adj).ptr;
      const int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
      if (fd >= 0) {
        [[maybe_unused]] const auto written = write(fd, digits, static_cast<size_t>(end - digits));
        close(fd);
      }
    }
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    signal(SIGPIPE, SIG_DFL);
#ifdef SYS_close_range
    constexpr unsigned kCloseOnExec = 4;  // CLOSE_RANGE_CLOEXEC
    syscall(SYS_close_range, 3U, ~0U, kCloseOnExec);
#endif
  }
};

std::string environment_value(const SpawnOptions& options, const std::string& name) {
  for (const auto& [key, value] : options.environment)
    if (key == name) return value;
  return "";
}

/// /proc/PID/stat after the command's closing parenthesis, which may itself hold spaces and parentheses.
std::optional<std::vector<std::string>> stat_fields(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t close = text.rfind(')');
  if (close == std::string::npos) return std::nullopt;
  std::istringstream rest(text.substr(close + 1));
  std::vector<std::string> fields((std::istream_iterator<std::string>(rest)), std::istream_iterator<std::string>());
  if (fields.size() < 20) return std::nullopt;
  return fields;
}

std::string read_whole(const std::string& path, size_t limit) {
  std::ifstream file(path, std::ios::binary);
  std::string text(limit, '\0');
  file.read(text.data(), static_cast<std::streamsize>(limit));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

/// Calls `visit` with every pid of this machine.
void for_each_pid(const std::function<void(int)>& visit) {
  DIR* directory = opendir("/proc");
  if (directory == nullptr) return;
  while (const dirent* entry = readdir(directory)) {
    int pid = 0;
    const char* end = entry->d_name + std::strlen(entry->d_name);
    const auto parsed = std::from_chars(entry->d_name, end, pid);
    if (parsed.ec == std::errc() && parsed.ptr == end && pid > 0) visit(pid);
  }
  closedir(directory);
}

/// Inodes of the sockets that listen on `port`, from one of /proc/net/tcp and tcp6.
void collect_listeners(const char* path, int port, std::set<std::string>& inodes) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);  // the heading
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
    words >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >> timeout >> inode;
    constexpr std::string_view kListen = "0A";
    const size_t colon = local.rfind(':');
    if (state != kListen || colon == std::string::npos) continue;
    if (std::strtol(local.c_str() + colon + 1, nullptr, 16) == port) inodes.insert(inode);
  }
}

bool holds_socket(int pid, const std::set<std::string>& inodes) {
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
  DIR* directory = opendir(folder.c_str());
  if (directory == nullptr) return false;
  bool found = false;
  while (const dirent* entry = readdir(directory)) {
    char target[64];
    const ssize_t length = readlink((folder + "/" + entry->d_name).c_str(), target, sizeof target - 1);
    if (length <= 9) continue;
    const std::string_view link(target, static_cast<size_t>(length));
    if (!link.starts_with("socket:[")) continue;
    if (inodes.contains(std::string(link.substr(8, link.size() - 9)))) found = true;
  }
  closedir(directory);
  return found;
}

}  // namespace

std::pair<FileDescriptor, FileDescriptor> make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    throw Error(ErrorKind::node, std::string("cannot make a pipe: ") + std::strerror(errno));
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

int spawn(const SpawnOptions& options) {
  if (options.argv.empty()) throw Error(ErrorKind::launch, "nothing to run: the command line is empty");
  const std::string program = find_in_path(options.argv[0], environment_value(options, "PATH"));
  if (program.empty())
    throw Error(ErrorKind::launch, "program `" + options.argv[0] + "` is not on this machine", "",
                "install it, or give its path");

  FileDescriptor null(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null) throw Error(ErrorKind::node, std::string("cannot open /dev/null: ") + std::strerror(errno));
  const auto or_null = [&](int fd) { return fd >= 0 ? fd : null.get(); };

  std::vector<std::string> entries;
  for (const auto& [key, value] : options.environment) entries.push_back(key + "=" + value);
  std::vector<char*> environment;
  for (std::string& entry : entries) environment.push_back(entry.data());
  environment.push_back(nullptr);
  const std::vector<std::string> arguments(options.argv.begin() + 1, options.argv.end());
  const std::string folder = options.working_directory.empty() ? "." : options.working_directory;

  // Boost's pipe for the exec error is marked close-on-exec only after it exists: two threads that fork at once could
  // keep each other's pipe open and wait for ever.
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  std::error_code failure;
  bp::child child(bp::exe = program, bp::args = arguments, bp::start_dir = folder,
                  bp::posix::fd.bind(STDIN_FILENO, or_null(options.stdin_fd)),
                  bp::posix::fd.bind(STDOUT_FILENO, or_null(options.stdout_fd)),
                  bp::posix::fd.bind(STDERR_FILENO, or_null(options.stderr_fd)),
                  ChildSetup(&options, environment.data(), getpid()), failure);
  if (failure)
    throw Error(ErrorKind::launch, "cannot run `" + program + "`: " + failure.message(), folder == "." ? "" : folder);
  const int pid = child.id();
  child.detach();  // reaping is the caller's: supervisors look at the dead before they let go of the pid
  return pid;
}

std::vector<std::pair<std::string, std::string>> own_environment() {
  std::vector<std::pair<std::string, std::string>> result;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (equals != std::string_view::npos && equals > 0)
      result.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return result;
}

std::string own_executable() {
  std::string path(4096, '\0');
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) return "/proc/self/exe";
  path.resize(static_cast<size_t>(length));
  // A program replaced while it runs shows as "... (deleted)"; the link itself still leads to the running image.
  return access(path.c_str(), X_OK) == 0 ? path : "/proc/self/exe";
}

std::string find_in_path(const std::string& name, const std::string& path) {
  const auto is_program = [](const std::string& candidate) {
    struct stat info {};
    return stat(candidate.c_str(), &info) == 0 && S_ISREG(info.st_mode) && access(candidate.c_str(), X_OK) == 0;
  };
  if (name.find('/') != std::string::npos) return is_program(name) ? name : "";
  std::istringstream folders(path);
  std::string folder;
  while (std::getline(folders, folder, ':')) {
    if (folder.empty()) continue;  // "the current folder" is nobody's intention
    const std::string candidate = folder + "/" + name;
    if (is_program(candidate)) return candidate;
  }
  return "";
}

std::string boot_id() {
  std::string text = read_whole("/proc/sys/kernel/random/boot_id", 64);
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

std::optional<ProcessId> find_process(int pid) {
  const auto fields = stat_fields(pid);
  if (!fields) return std::nullopt;
  const std::string& state = (*fields)[0];
  if (state == "Z" || state == "X") return std::nullopt;
  return ProcessId{pid, std::strtoll((*fields)[19].c_str(), nullptr, 10)};
}

bool is_alive(const ProcessId& process) {
  return process.pid > 0 && find_process(process.pid) == process;
}

bool send_signal(const ProcessId& process, int signal) {
  if (process.pid <= 0) return false;
#if defined(SYS_pidfd_open) && defined(SYS_pidfd_send_signal)
  // The descriptor holds on to the process: once it is seen to be the right one, it stays so.
  const FileDescriptor handle(static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0)));
  if (handle) {
    if (!is_alive(process)) return false;
    return syscall(SYS_pidfd_send_signal, handle.get(), signal, nullptr, 0) == 0;
  }
  if (errno == ESRCH) return false;
#endif
  return is_alive(process) && kill(process.pid, signal) == 0;
}

bool wait_until_gone(const ProcessId& process, std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (is_alive(process)) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

std::string command_line(int pid) {
  std::string text = read_whole("/proc/" + std::to_string(pid) + "/cmdline", 1024);
  while (!text.empty() && text.back() == '\0') text.pop_back();
  for (char& c : text)
    if (c == '\0') c = ' ';
  return printable(text, 200);
}

std::vector<ProcessId> processes_with_environment(const std::string& name, const std::string& value) {
  std::vector<ProcessId> found;
  const std::string wanted = name + "=" + value;
  for_each_pid([&](int pid) {
    const auto process = find_process(pid);
    if (!process) return;
    constexpr size_t kLimit = 4 << 20;
    std::istringstream entries(read_whole("/proc/" + std::to_string(pid) + "/environ", kLimit));
    std::string entry;
    while (std::getline(entries, entry, '\0'))
      if (entry == wanted) {
        found.push_back(*process);
        return;
      }
  });
  return found;
}

std::optional<PortOwner> port_owner(int port) {
  std::set<std::string> inodes;
  collect_listeners("/proc/net/tcp", port, inodes);
  collect_listeners("/proc/net/tcp6", port, inodes);
  if (inodes.empty()) return std::nullopt;
  PortOwner owner{port, 0, ""};
  for_each_pid([&](int pid) {
    if (owner.pid == 0 && holds_socket(pid, inodes)) owner = {port, pid, command_line(pid)};
  });
  return owner;
}

}  // namespace tandem::node
