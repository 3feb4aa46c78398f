#include "orchestrator/plan/rank_command.h"

#include <charconv>

#include "orchestrator/recipe/placeholders.h"

namespace tandem {
namespace {

/// Shortest text that reads back as the same number: "0.95", never "9.5e-01".
std::string decimal(double value) {
  char text[64];
  const auto result = std::to_chars(text, text + sizeof text, value, std::chars_format::fixed);
  return {text, result.ptr};
}

bool is_cuda(const PlannedRank& rank) {
  return rank.device.starts_with("cuda:");
}

std::map<std::string, std::string> placeholder_values(const RankSettings& s) {
  const PlannedNode& node = s.plan.nodes[static_cast<size_t>(s.rank.node)];
  return {{"rank", std::to_string(s.rank.rank)},
          {"world_size", std::to_string(s.plan.world_size)},
          {"pack", s.rank.folder},
          {"master_address", s.plan.rendezvous_address},
          {"master_port", std::to_string(s.plan.rendezvous_port)},
          {"listen_address", s.plan.listen_address},
          {"port", std::to_string(s.plan.http_port)},
          {"context", std::to_string(s.plan.context_tokens)},
          {"slots", std::to_string(s.recipe.engine.slots)},
          {"mtp_depth", std::to_string(s.recipe.engine.mtp_depth)},
          {"threads", std::to_string(s.threads)},
          {"device", s.rank.device},
          {"model_name", s.recipe.model.name},
          {"node", node.name},
          {"link_address", node.link_address}};
}

const CommandRank& command_of(const RankSettings& s) {
  return s.recipe.engine.ranks[static_cast<size_t>(s.rank.rank)];
}

}  // namespace

std::string host_port(const std::string& host, int port) {
  const bool ipv6 = host.find(':') != std::string::npos;
  return (ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

std::vector<std::string> runtime_arguments(const RankSettings& s) {
  const EngineSection& engine = s.recipe.engine;
  std::vector<std::string> argv = {"serve"};
  const auto add = [&](const char* flag, std::string value) {
    argv.emplace_back(flag);
    argv.push_back(std::move(value));
  };
  add("--pack", s.rank.folder);
  add("--rank", std::to_string(s.rank.rank));
  add("--world-size", std::to_string(s.plan.world_size));
  if (s.plan.world_size > 1) add("--rendezvous", host_port(s.plan.rendezvous_address, s.plan.rendezvous_port));
  if (s.rank.rank == 0) add("--listen", host_port(s.plan.listen_address, s.plan.http_port));
  add("--device", s.rank.device);
  add("--context", std::to_string(s.plan.context_tokens));
  add("--mtp-depth", std::to_string(engine.mtp_depth));
  if (engine.mtp_adaptive) argv.emplace_back("--mtp-adaptive");
  add("--kv-cache", engine.kv_cache);
  add("--slots", std::to_string(engine.slots));
  add("--memory-floor", std::to_string(s.recipe.rank_floor_bytes[static_cast<size_t>(s.rank.rank)]));
  add("--model-name", s.recipe.model.name);
  add("--threads", std::to_string(s.threads));
  add("--peer-timeout", std::to_string(std::chrono::ceil<std::chrono::seconds>(engine.peer_timeout).count()));
  if (engine.sampling.temperature) add("--temperature", decimal(*engine.sampling.temperature));
  if (engine.sampling.top_p) add("--top-p", decimal(*engine.sampling.top_p));
  if (engine.sampling.top_k) add("--top-k", std::to_string(*engine.sampling.top_k));
  if (engine.sampling.min_p) add("--min-p", decimal(*engine.sampling.min_p));
  if (engine.loop_guard) argv.emplace_back("--loop-guard");
  return argv;
}

std::vector<std::string> command_arguments(const RankSettings& s) {
  const std::map<std::string, std::string> values = placeholder_values(s);
  std::vector<std::string> argv;
  for (const std::string& argument : command_of(s).argv) argv.push_back(resolve_placeholders(argument, values));
  return argv;
}

std::map<std::string, std::string> rank_environment(const RankSettings& s) {
  std::map<std::string, std::string> env;
  const bool command = s.recipe.engine.kind == EngineKind::command;
  if (command) {
    const std::map<std::string, std::string> values = placeholder_values(s);
    for (const auto& [name, value] : command_of(s).env) env[name] = resolve_placeholders(value, values);
    // Our runtime is told its device by a flag; others see only theirs.
    if (is_cuda(s.rank)) env["CUDA_VISIBLE_DEVICES"] = s.rank.device.substr(std::string("cuda:").size());
  }
  for (const auto& [name, value] : s.cluster.env) env[name] = value;
  return env;
}

}  // namespace tandem
