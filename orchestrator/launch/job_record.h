#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "orchestrator/recipe/recipe.h"

namespace tandem::launch {

// What the controller remembers of a job, so that `status`, `logs` and `down` need neither recipe nor cluster file.
// STATE/registry/NAME.json; the nodes know the rest.

struct JobRecord {
  std::string name;
  std::string recipe_file;
  std::string model;
  std::string launch_key;
  std::string address;  ///< of the endpoint, as a client on this machine reaches it
  int http_port = 0;
  bool tandem_engine = true;
  std::vector<ClusterNode> nodes;  ///< that have ranks of it
  int64_t started_at = 0;          ///< seconds of the Unix epoch
};

void write_record(const std::filesystem::path& state_folder, const JobRecord& record);
std::optional<JobRecord> read_record(const std::filesystem::path& state_folder, const std::string& name);
void remove_record(const std::filesystem::path& state_folder, const std::string& name);
std::vector<std::string> list_records(const std::filesystem::path& state_folder);

/// One controller at a time works on a job. The lock goes with the process that holds it, however it ends.
class JobLock {
 public:
  /// @param purpose  "up", "down": told to whoever finds it taken
  /// @throws Error   kind `launch`: another process holds it (its pid, purpose and age)
  JobLock(const std::filesystem::path& state_folder, const std::string& name, const std::string& purpose);
  ~JobLock();
  JobLock(const JobLock&) = delete;
  JobLock& operator=(const JobLock&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::launch
