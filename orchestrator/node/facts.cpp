#include "orchestrator/node/facts.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "orchestrator/fetch/cache.h"
#include "orchestrator/node/process.h"
#include "orchestrator/node/protocol.h"
#include "orchestrator/node/rank_state.h"
#include "orchestrator/split/split.h"
#include "runtime/common/error.h"
#include "runtime/common/file.h"
#include "runtime/common/log.h"
#include "runtime/common/manifest.h"

namespace tandem::node {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kProgramLimit{20};
constexpr size_t kMaxProgramOutput = 1 << 20;

struct Memory {
  int64_t total_bytes = 0, available_bytes = 0;
};

Memory read_memory() {
  std::ifstream file("/proc/meminfo");
  Memory memory;
  std::string key, rest;
  for (int64_t kibibytes = 0; file >> key >> kibibytes; std::getline(file, rest)) {
    if (key == "MemTotal:") memory.total_bytes = kibibytes * 1024;
    if (key == "MemAvailable:") memory.available_bytes = kibibytes * 1024;
  }
  return memory;
}

/// Memory that would come free if the process ended: shared pages, the pack's mapping among them, are not its own.
int64_t private_bytes(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/smaps_rollup");
  std::string line;
  int64_t bytes = 0;
  while (std::getline(file, line))
    if (line.starts_with("Private_") || line.starts_with("Anonymous:"))
      bytes = std::max<int64_t>(bytes, std::strtoll(line.c_str() + line.find(':') + 1, nullptr, 10) * 1024);
  return bytes;
}

/// stdout of a program that ends soon; "" when it fails or takes too long.
std::string output_of(const std::vector<std::string>& argv) {
  auto [read_end, write_end] = make_pipe();
  SpawnOptions options;
  options.argv = argv;
  options.environment = own_environment();
  options.stdout_fd = write_end.get();
  const int pid = spawn(options);
  write_end.close();
  std::string text;
  const auto deadline = Clock::now() + kProgramLimit;
  while (text.size() < kMaxProgramOutput) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd wait{read_end.get(), POLLIN, 0};
    if (left <= 0 || poll(&wait, 1, static_cast<int>(left)) <= 0) break;
    char block[4096];
    const ssize_t bytes = read(read_end.get(), block, sizeof block);
    if (bytes <= 0) break;
    text.append(block, static_cast<size_t>(bytes));
  }
  kill(-pid, SIGKILL);  // its session is its own; one that has ended does not mind
  int status = 0;
  waitpid(pid, &status, 0);
  return text;
}

std::vector<std::string> strings_at(const json& object, const char* key) {
  std::vector<std::string> result;
  if (!object.is_object() || !object.contains(key) || !object[key].is_array()) return result;
  for (const json& item : object[key])
    if (item.is_string()) result.push_back(item.get<std::string>());
  return result;
}

void ask_runtime(NodeFacts& facts) {
  facts.runtime_program = find_runtime();
  if (facts.runtime_program.empty()) return;
  try {
    const json answer = json::parse(output_of({facts.runtime_program, "version", "--json"}), nullptr, false);
    if (answer.is_object()) facts.runtime_options = strings_at(answer.value("options", json::object()), "serve");
    if (const auto devices = strings_at(answer, "devices"); !devices.empty()) facts.devices = devices;
  } catch (const Error&) {
    facts.runtime_program.clear();  // there, but not executable: as good as missing
  }
}

/// Ports of this machine that somebody listens on, without those of our own job.
std::vector<int> listening_ports(const std::vector<int>& own) {
  std::vector<int> ports;
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string slot, local, remote, state;
      words >> slot >> local >> remote >> state;
      const size_t colon = local.rfind(':');
      if (state != "0A" || colon == std::string::npos) continue;
      const int port = static_cast<int>(std::strtol(local.c_str() + colon + 1, nullptr, 16));
      if (std::find(own.begin(), own.end(), port) == own.end()) ports.push_back(port);
    }
  }
  std::sort(ports.begin(), ports.end());
  ports.erase(std::unique(ports.begin(), ports.end()), ports.end());
  return ports;
}

/// @return what its ranks hold of the memory
int64_t look_at_job(const fs::path& folder, NodeFacts& facts, std::vector<int>& ports) {
  RunningJob job;
  int64_t held_bytes = 0;
  bool all_alive = true, all_ready = true, any = false;
  for (const int rank : list_ranks(folder)) {
    const RankSpec spec = read_rank_spec(folder, rank);
    const RankStatus status = observe_rank(folder, rank);
    any = true;
    all_alive = all_alive && status.supervised && status.alive;
    all_ready = all_ready && status.state.phase == RankPhase::running;
    job.launch_key = spec.launch_key;
    job.http_port = std::max(job.http_port, spec.http_port);
    job.rendezvous_port = std::max(job.rendezvous_port, spec.rendezvous_port);
    if (!status.alive) continue;
    held_bytes += private_bytes(status.state.process.pid);
    ports.insert(ports.end(), spec.ports.begin(), spec.ports.end());
  }
  job.ready = all_ready;
  if (any && all_alive) facts.job = job;
  return held_bytes;
}

/// A folder that lost a file or a part of one is as good as absent: the plan then has it written anew.
bool is_whole_rank_folder(const fs::path& folder) {
  if (folder.extension() == ".partial" || !is_rank_folder(folder)) return false;
  try {
    check_manifest(folder, read_manifest(folder, /*with_tensors=*/false), {});
    return true;
  } catch (const Error& error) {
    log_warn("rank folder cannot be used", {{"folder", folder.string()}, {"reason", error.what()}});
    return false;
  }
}

void list_rank_folders(const fs::path& ranks_folder, NodeFacts& facts) {
  std::error_code ignored;
  for (const auto& pack : fs::directory_iterator(ranks_folder, ignored))
    for (const auto& rank : fs::directory_iterator(pack.path(), ignored))
      if (is_whole_rank_folder(rank.path())) facts.rank_folders.push_back(rank.path().string());
  std::sort(facts.rank_folders.begin(), facts.rank_folders.end());
}

}  // namespace

std::string find_runtime() {
  const auto variable = [](const char* name) { return std::string(std::getenv(name) ? std::getenv(name) : ""); };
  if (const std::string given = variable("TANDEM_RUNTIME"); !given.empty())
    return find_in_path(given, variable("PATH"));
  const std::string beside = (fs::path(own_executable()).parent_path() / "tandem-runtime").string();
  if (const std::string found = find_in_path(beside, ""); !found.empty()) return found;
  return find_in_path("tandem-runtime", variable("PATH"));
}

NodeFacts gather_facts(const ProbeRequest& request) {
  NodeFacts facts;
  facts.name = request.name;
  facts.cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  facts.hub_cache = request.hub_cache.empty() ? hub_cache_dir().string() : request.hub_cache;
  facts.ranks_folder = request.ranks_folder.empty() ? default_ranks_folder().string() : request.ranks_folder;
  facts.state_folder = request.state_folder.empty() ? default_state_folder().string() : request.state_folder;
  facts.disk_free_bytes = free_disk_bytes(facts.ranks_folder, ErrorKind::node);

  std::vector<int> own_ports;
  int64_t held_bytes = 0;
  if (!request.job.empty()) held_bytes = look_at_job(job_folder(facts.state_folder, request.job), facts, own_ports);
  facts.ports_in_use = listening_ports(own_ports);
  const Memory memory = read_memory();
  facts.memory_total_bytes = memory.total_bytes;
  facts.memory_available_bytes = std::min(memory.total_bytes, memory.available_bytes + held_bytes);

  ask_runtime(facts);
  for (const std::string& program : request.programs)
    if (find_in_path(program, "").empty()) facts.missing_programs.push_back(program);
  if (!request.repo.empty() && !request.commit.empty())
    if (const auto snapshot = find_snapshot(facts.hub_cache, request.repo, request.commit))
      if (const auto files = load_file_list(facts.hub_cache, request.repo, snapshot->commit))
        for (const HubFile& file : *files) {
          std::error_code failure;
          const auto bytes = fs::file_size(snapshot->path / file.path, failure);
          if (!failure && static_cast<int64_t>(bytes) == file.size) facts.cached_files.push_back(file.path);
        }
  list_rank_folders(facts.ranks_folder, facts);
  return facts;
}

json to_json(const ProbeRequest& r) {
  return {{"name", r.name},
          {"hub_cache", r.hub_cache},
          {"ranks_folder", r.ranks_folder},
          {"state_folder", r.state_folder},
          {"job", r.job},
          {"repo", r.repo},
          {"commit", r.commit},
          {"programs", r.programs}};
}

ProbeRequest probe_request_from_json(const json& j) {
  return {j.at("name").get<std::string>(),         j.at("hub_cache").get<std::string>(),
          j.at("ranks_folder").get<std::string>(), j.at("state_folder").get<std::string>(),
          j.at("job").get<std::string>(),          j.at("repo").get<std::string>(),
          j.at("commit").get<std::string>(),       j.at("programs").get<std::vector<std::string>>()};
}

json to_json(const NodeFacts& f) {
  json j = {{"name", f.name},
            {"memory_total_bytes", f.memory_total_bytes},
            {"memory_available_bytes", f.memory_available_bytes},
            {"disk_free_bytes", f.disk_free_bytes},
            {"cores", f.cores},
            {"devices", f.devices},
            {"ports_in_use", f.ports_in_use},
            {"hub_cache", f.hub_cache},
            {"ranks_folder", f.ranks_folder},
            {"state_folder", f.state_folder},
            {"runtime_program", f.runtime_program},
            {"runtime_options", f.runtime_options},
            {"missing_programs", f.missing_programs},
            {"cached_files", f.cached_files},
            {"rank_folders", f.rank_folders}};
  if (f.job)
    j["job"] = {{"launch_key", f.job->launch_key},
                {"ready", f.job->ready},
                {"http_port", f.job->http_port},
                {"rendezvous_port", f.job->rendezvous_port}};
  return j;
}

NodeFacts node_facts_from_json(const json& j) {
  try {
    NodeFacts f;
    f.name = j.at("name").get<std::string>();
    f.memory_total_bytes = j.at("memory_total_bytes").get<int64_t>();
    f.memory_available_bytes = j.at("memory_available_bytes").get<int64_t>();
    f.disk_free_bytes = j.at("disk_free_bytes").get<int64_t>();
    f.cores = j.at("cores").get<int>();
    f.devices = j.at("devices").get<std::vector<std::string>>();
    f.ports_in_use = j.at("ports_in_use").get<std::vector<int>>();
    f.hub_cache = j.at("hub_cache").get<std::string>();
    f.ranks_folder = j.at("ranks_folder").get<std::string>();
    f.state_folder = j.at("state_folder").get<std::string>();
    f.runtime_program = j.at("runtime_program").get<std::string>();
    f.runtime_options = j.at("runtime_options").get<std::vector<std::string>>();
    f.missing_programs = j.at("missing_programs").get<std::vector<std::string>>();
    f.cached_files = j.at("cached_files").get<std::vector<std::string>>();
    f.rank_folders = j.at("rank_folders").get<std::vector<std::string>>();
    if (j.contains("job"))
      f.job = RunningJob{j.at("job").at("launch_key").get<std::string>(), j.at("job").at("ready").get<bool>(),
                         j.at("job").at("http_port").get<int>(), j.at("job").at("rendezvous_port").get<int>()};
    return f;
  } catch (const json::exception& e) {
    throw Error(ErrorKind::node, std::string("the node's facts are not as expected: ") + e.what());
  }
}

}  // namespace tandem::node
