#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/common/file.h"

namespace tandem::node {

/// A process that cannot be mistaken for a later one: pids are reused, a pid with its start time is not.
struct ProcessId {
  int pid = 0;
  int64_t start_ticks = 0;  ///< clock ticks after boot, field 22 of /proc/PID/stat

  bool operator==(const ProcessId&) const = default;
};

/// What a new process gets. Nothing is inherited but what is named here: all other descriptors close on exec.
struct SpawnOptions {
  std::vector<std::string> argv;  ///< argv[0] is a path, or a name looked up in PATH of `environment`
  std::vector<std::pair<std::string, std::string>> environment;
  std::string working_directory;  ///< "" keeps ours
  int stdin_fd = -1;              ///< -1: /dev/null; so too for the other two
  int stdout_fd = -1;
  int stderr_fd = -1;
  bool new_session = true;        ///< own session and process group: no terminal signals, killable as a whole
  bool dies_with_parent = false;  ///< SIGKILL when the calling thread's process ends, however it ends
  int oom_score_adj = 0;          ///< raised for ranks, so that the kernel takes them before sshd
};

/// Starts a process; the caller reaps it.
/// @throws Error  kind `launch`, when the program is missing or cannot be executed
int spawn(const SpawnOptions& options);

/// This process's own environment, as SpawnOptions wants it.
std::vector<std::pair<std::string, std::string>> own_environment();

/// Path of the running program, for starting more of it.
std::string own_executable();

/// The first executable `name` in a PATH-like list; `name` itself when it holds a slash and is executable; else "".
std::string find_in_path(const std::string& name, const std::string& path);

/// Changes with every boot: tells "the process ended" from "the machine restarted".
std::string boot_id();

/// The living process with this pid; zombies do not count.
std::optional<ProcessId> find_process(int pid);
bool is_alive(const ProcessId& process);
/// Sends a signal to exactly this process. @return false when it is gone (or not ours to signal)
bool send_signal(const ProcessId& process, int signal);
/// Waits for a process that need not be our child. @return true when it ended in time
bool wait_until_gone(const ProcessId& process, std::chrono::milliseconds limit);

/// The command line of a process, printable, at most 200 bytes; "" when it cannot be read.
std::string command_line(int pid);

/// Every living process of this user whose environment holds NAME=VALUE: what a rank started, and what that started,
/// whatever became of their parents, groups and sessions.
std::vector<ProcessId> processes_with_environment(const std::string& name, const std::string& value);

/// Who listens on a TCP port of this machine.
struct PortOwner {
  int port = 0;
  int pid = 0;          ///< 0 when the process belongs to another user
  std::string command;  ///< "" likewise
};
std::optional<PortOwner> port_owner(int port);

/// Both ends of a pipe, closed on exec: {read end, write end}.
std::pair<FileDescriptor, FileDescriptor> make_pipe();

}  // namespace tandem::node
