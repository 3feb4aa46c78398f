#include "tests/runtime/server/rank_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

namespace tandem::test {

RankProcess::RankProcess(const std::vector<std::string>& arguments, std::filesystem::path log) : log_(std::move(log)) {
  std::vector<std::string> words = {std::string(TANDEM_BINARY_DIR) + "/bin/tandem-runtime"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const int fd = open(log_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  pid_ = fork();
  if (pid_ == 0) {
    dup2(fd, STDERR_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(fd);
}

RankProcess::~RankProcess() {
  if (reaped_) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void RankProcess::send(int signal) const {
  kill(pid_, signal);
}

bool RankProcess::ended() {
  if (!reaped_) reaped_ = waitpid(pid_, &status_, WNOHANG) == pid_;
  return reaped_;
}

int RankProcess::wait() {
  if (!reaped_) reaped_ = waitpid(pid_, &status_, 0) == pid_;
  return WIFEXITED(status_) ? WEXITSTATUS(status_) : -WTERMSIG(status_);
}

std::string RankProcess::log() const {
  std::ostringstream text;
  text << std::ifstream(log_).rdbuf();
  return text.str();
}

bool RankProcess::logged(const std::string& text) {
  while (true) {
    const bool last_look = ended();
    if (log().find(text) != std::string::npos) return true;
    if (last_look) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

int RankProcess::port() {
  const std::string key = "listening address=127.0.0.1:";
  if (!logged(key)) return 0;
  const std::string text = log();
  return std::atoi(text.c_str() + text.find(key) + key.size());
}

}  // namespace tandem::test
