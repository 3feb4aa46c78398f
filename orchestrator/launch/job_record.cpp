#include "orchestrator/launch/job_record.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>

#include "orchestrator/node/process.h"
#include "orchestrator/node/rank_state.h"
#include "runtime/common/error.h"
#include "runtime/common/file.h"
#include "runtime/common/units.h"

namespace tandem::launch {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kMaxRecordBytes = 1 << 20;

fs::path registry(const fs::path& state_folder) {
  return state_folder / "registry";
}

fs::path record_path(const fs::path& state_folder, const std::string& name, const char* suffix) {
  return registry(state_folder) / (node::job_folder(state_folder, name).filename().string() + suffix);
}

json node_json(const ClusterNode& n) {
  return {{"name", n.name},
          {"address", n.address},
          {"link_address", n.link_address},
          {"user", n.user},
          {"ssh_port", n.ssh_port},
          {"hub_cache", n.hub_cache},
          {"ranks_folder", n.ranks_folder},
          {"state_folder", n.state_folder}};
}

ClusterNode node_from_json(const json& j) {
  ClusterNode n;
  n.name = j.at("name").get<std::string>();
  n.address = j.at("address").get<std::string>();
  n.link_address = j.at("link_address").get<std::string>();
  n.user = j.at("user").get<std::string>();
  n.ssh_port = j.at("ssh_port").get<int>();
  n.hub_cache = j.at("hub_cache").get<std::string>();
  n.ranks_folder = j.at("ranks_folder").get<std::string>();
  n.state_folder = j.at("state_folder").get<std::string>();
  return n;
}

}  // namespace

void write_record(const fs::path& state_folder, const JobRecord& r) {
  make_folders(registry(state_folder), ErrorKind::node);
  json nodes = json::array();
  for (const ClusterNode& n : r.nodes) nodes.push_back(node_json(n));
  const json j = {{"schema_version", 1},
                  {"name", r.name},
                  {"recipe_file", r.recipe_file},
                  {"model", r.model},
                  {"launch_key", r.launch_key},
                  {"address", r.address},
                  {"http_port", r.http_port},
                  {"tandem_engine", r.tandem_engine},
                  {"nodes", nodes},
                  {"started_at", r.started_at}};
  write_file_atomic(record_path(state_folder, r.name, ".json"), j.dump(1, ' ', false, json::error_handler_t::replace),
                    ErrorKind::node);
}

std::optional<JobRecord> read_record(const fs::path& state_folder, const std::string& name) {
  const fs::path path = record_path(state_folder, name, ".json");
  if (!fs::exists(path)) return std::nullopt;
  try {
    const json j = json::parse(read_small_file(path, kMaxRecordBytes, ErrorKind::node));
    JobRecord r;
    r.name = j.at("name").get<std::string>();
    r.recipe_file = j.at("recipe_file").get<std::string>();
    r.model = j.at("model").get<std::string>();
    r.launch_key = j.at("launch_key").get<std::string>();
    r.address = j.at("address").get<std::string>();
    r.http_port = j.at("http_port").get<int>();
    r.tandem_engine = j.at("tandem_engine").get<bool>();
    for (const json& n : j.at("nodes")) r.nodes.push_back(node_from_json(n));
    r.started_at = j.at("started_at").get<int64_t>();
    return r;
  } catch (const json::exception& e) {
    throw Error(ErrorKind::node, std::string("this job record is damaged: ") + e.what(), path.string(),
                "remove that file, then `tandem down " + name + "` stops what runs on this machine");
  }
}

void remove_record(const fs::path& state_folder, const std::string& name) {
  std::error_code ignored;
  fs::remove(record_path(state_folder, name, ".json"), ignored);
  fs::remove(registry(state_folder), ignored);  // only when empty
}

std::vector<std::string> list_records(const fs::path& state_folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(registry(state_folder), ignored))
    if (entry.path().extension() == ".json" && !entry.path().filename().string().starts_with("."))
      names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

struct JobLock::State {
  FileDescriptor file;
  fs::path path;
};

JobLock::JobLock(const fs::path& state_folder, const std::string& name, const std::string& purpose)
    : state_(std::make_unique<State>()) {
  make_folders(registry(state_folder), ErrorKind::node);
  state_->path = record_path(state_folder, name, ".lock");
  for (;;) {
    state_->file = FileDescriptor(open(state_->path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!state_->file)
      throw Error(ErrorKind::node, std::string("cannot make a lock: ") + std::strerror(errno), state_->path.string());
    if (flock(state_->file.get(), LOCK_EX | LOCK_NB) != 0) {
      char text[256] = "";
      const ssize_t bytes = pread(state_->file.get(), text, sizeof text - 1, 0);
      throw Error(ErrorKind::launch,
                  "another tandem works on `" + name +
                      "`: " + printable(std::string_view(text, static_cast<size_t>(std::max<ssize_t>(bytes, 0)))),
                  state_->path.string(), "wait for it, or stop it with Ctrl-C where it runs");
    }
    // Whoever held it before us may have removed the file between our open and our lock.
    struct stat locked {
    }, named{};
    if (fstat(state_->file.get(), &locked) == 0 && stat(state_->path.c_str(), &named) == 0 &&
        locked.st_ino == named.st_ino)
      break;
  }
  char time_text[32] = "";
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  std::strftime(time_text, sizeof time_text, "%F %T", localtime_r(&now, &local));
  const std::string owner = "`" + purpose + "`, pid " + std::to_string(getpid()) + ", since " + time_text;
  if (ftruncate(state_->file.get(), 0) != 0 || pwrite(state_->file.get(), owner.data(), owner.size(), 0) < 0) {
    // Only the message for others suffers.
  }
}

JobLock::~JobLock() {
  std::error_code ignored;
  fs::remove(state_->path, ignored);
  fs::remove(state_->path.parent_path(), ignored);  // only when empty
}

}  // namespace tandem::launch
