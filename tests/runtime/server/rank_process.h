#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

namespace tandem::test {

/// A tandem-runtime as a process of its own; killed with its owner.
class RankProcess {
 public:
  /// @param log  its stderr
  RankProcess(const std::vector<std::string>& arguments, std::filesystem::path log);
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  void send(int signal) const;
  /// Its exit code, or -signal; waits for its end.
  int wait();
  std::string log() const;
  /// Waits for a line of the log that holds `text`; false when the process ended without one.
  bool logged(const std::string& text);
  /// The port it says it listens on.
  int port();

 private:
  bool ended();

  std::filesystem::path log_;
  pid_t pid_ = -1;
  int status_ = 0;
  bool reaped_ = false;
};

}  // namespace tandem::test
