#include "tests/orchestrator/sandbox.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <iterator>
#include <thread>

#include "tests/catch.h"

namespace tandem::test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

std::string read_whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

constexpr const char* kMark = "TANDEM_TEST_SANDBOX";

}  // namespace

int free_port() {
  const FileDescriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  socklen_t length = sizeof address;
  getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.sin_port);
}

Sandbox::Sandbox() {
  const std::string root = folder_.path().string();
  environment = {{"HOME", root + "/home"},
                 {"TANDEM_STATE_DIR", root + "/state"},
                 {"TANDEM_CACHE_DIR", root + "/cache"},
                 {"HF_HUB_CACHE", root + "/hub"},
                 {"HF_ENDPOINT", "http://127.0.0.1:9"},  // nobody: a test that wants a hub starts one
                 {"TANDEM_RECIPES_DIR", root + "/recipes"},
                 {"TANDEM_RUNTIME", std::string(TANDEM_BINARY_DIR) + "/tests/fake_runtime"},
                 {kMark, root}};
  for (const char* name : {"home", "recipes", "output"}) fs::create_directories(folder_ / name);
  // Beside the recipes, since a recipe may not lead out of its folder.
  fs::copy(std::string(TANDEM_SOURCE_DIR) + "/examples/packs/ling-tiny-exl3-3.12bpw", folder_ / "recipes/pack");
}

Sandbox::~Sandbox() {
  run({"down", "--all"});
  for (const auto& process : node::processes_with_environment(kMark, folder_.path().string()))
    node::send_signal(process, SIGKILL);
}

Sandbox::Running Sandbox::start(const std::vector<std::string>& arguments) {
  const std::string base = (folder_ / "output").string() + "/" + std::to_string(count_++);
  const FileDescriptor out(open((base + ".out").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  const FileDescriptor err(open((base + ".err").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  node::SpawnOptions options;
  options.argv = {std::string(TANDEM_BINARY_DIR) + "/bin/tandem"};
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  for (const auto& [name, value] : node::own_environment())
    if (!environment.contains(name)) options.environment.emplace_back(name, value);
  options.environment.insert(options.environment.end(), environment.begin(), environment.end());
  options.working_directory = folder_.path().string();
  options.stdout_fd = out.get();
  options.stderr_fd = err.get();
  return {node::spawn(options), base + ".out", base + ".err"};
}

Outcome Sandbox::run(const std::vector<std::string>& arguments) {
  return start(arguments).wait();
}

std::string Sandbox::write_recipe(const std::string& name, int ranks, const std::string& more) {
  const std::string path = (folder_ / "recipes").string() + "/" + name + ".yaml";
  std::ofstream(path) << "schema: tandem.recipe/v1\n"
                      << "name: " << name << "\n"
                      << "model: {name: ling-tiny, family: bailing_hybrid, context: {native: 4096}}\n"
                      << "pack: {path: pack}\n"
                      << "parallel: {tensor: " << ranks << "}\n"
                      << "engine: {context: 512, kv_cache: fp32, device: cpu}\n"
                      << "memory: {floor: 64MiB}\n"
                      << "health:\n"
                      << "  load_timeout: 2m\n"
                      << "  probes: [{prompt: \"What is 12 + 30?\", max_tokens: 32, expect: \"42\"}]\n"
                      << more;
  return path;
}

std::vector<std::string> Sandbox::up_arguments(const std::string& recipe) const {
  return {"up",    recipe,
          "--set", "cluster.ports.http=" + std::to_string(http_port),
          "--set", "cluster.ports.rendezvous=" + std::to_string(rendezvous_port)};
}

std::vector<std::string> Sandbox::state_files() const {
  std::vector<std::string> files;
  std::error_code ignored;
  const fs::path state = folder_ / "state";
  for (const auto& entry : fs::recursive_directory_iterator(state, ignored)) {
    const std::string name = entry.path().lexically_relative(state).string();
    if (!name.starts_with("logs")) files.push_back(name);
  }
  return files;
}

std::vector<std::string> Sandbox::processes() const {
  std::vector<std::string> commands;
  for (const auto& process : node::processes_with_environment(kMark, folder_.path().string()))
    commands.push_back(node::command_line(process.pid));
  return commands;
}

Sandbox::Running::Running(Running&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)), out_path_(other.out_path_), err_path_(other.err_path_) {}

Sandbox::Running::~Running() {
  if (pid_ == 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void Sandbox::Running::signal(int number) const {
  kill(pid_, number);
}

bool Sandbox::Running::wait_for_output(const std::string& text) {
  for (int i = 0; i < 12'000; ++i) {
    const bool ended = !node::find_process(pid_);
    if ((read_whole(err_path_) + read_whole(out_path_)).find(text) != std::string::npos) return true;
    if (ended) return false;
    std::this_thread::sleep_for(10ms);
  }
  return false;
}

Outcome Sandbox::Running::wait() {
  int status = 0;
  waitpid(std::exchange(pid_, 0), &status, 0);
  return {WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status), read_whole(out_path_),
          read_whole(err_path_)};
}

}  // namespace tandem::test
