#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "orchestrator/node/process.h"
#include "tests/orchestrator/temporary_folder.h"

namespace tandem::test {

/// What a finished command left.
struct Outcome {
  int exit_code = -1;  ///< 128 + N when signal N ended it
  std::string out, err;
};

/// A port that nobody listens on right now.
int free_port();

/// `tandem` as people run it, in a world of its own: home, state, caches and recipes are in a temporary folder, and the
/// engine is the fake runtime unless `runtime` says otherwise. Whatever still runs at the end is taken down.
class Sandbox {
 public:
  Sandbox();
  ~Sandbox();

  /// A command under way.
  class Running {
   public:
    Running(int pid, std::string out_path, std::string err_path)
        : pid_(pid), out_path_(std::move(out_path)), err_path_(std::move(err_path)) {}
    Running(Running&& other) noexcept;
    ~Running();
    void signal(int number) const;
    /// Waits until stderr or stdout holds `text`. @return false when the command ended, or two minutes passed, without
    bool wait_for_output(const std::string& text);
    Outcome wait();

   private:
    int pid_;
    std::string out_path_, err_path_;
  };

  Running start(const std::vector<std::string>& arguments);
  Outcome run(const std::vector<std::string>& arguments);

  /// Writes a recipe of the tiny pack on `ranks` CPU ranks, its ports free ones. @return its path
  std::string write_recipe(const std::string& name = "tiny", int ranks = 2, const std::string& more = "");
  /// Flags that give the job its free ports.
  std::vector<std::string> up_arguments(const std::string& recipe) const;

  /// Files of jobs, locks and records; logs are no state.
  std::vector<std::string> state_files() const;
  /// Processes of any rank, supervisor or helper of this sandbox.
  std::vector<std::string> processes() const;

  std::filesystem::path path() const { return folder_.path(); }
  std::map<std::string, std::string> environment;  ///< added to every command's
  int http_port = free_port();
  int rendezvous_port = free_port();

 private:
  TemporaryFolder folder_;
  int count_ = 0;
};

}  // namespace tandem::test
