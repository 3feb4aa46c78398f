// The plan for people and for programs.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "orchestrator/plan/plan.h"
#include "orchestrator/plan/rank_command.h"
#include "runtime/common/error.h"
#include "runtime/common/units.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

/// Columns as wide as their widest cell; numbers to the right would need types, so all go to the left.
class Table {
 public:
  explicit Table(std::vector<std::string> head) { rows_.push_back(std::move(head)); }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }

  std::string text() const {
    std::vector<size_t> widths(rows_.front().size());
    for (const auto& row : rows_)
      for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
    std::string out;
    for (const auto& row : rows_) {
      std::string line = "  ";
      for (size_t c = 0; c < row.size(); ++c) line += row[c] + std::string(widths[c] - row[c].size() + 2, ' ');
      out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    }
    return out;
  }

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::string size(int64_t bytes) {
  return bytes == 0 ? "-" : format_bytes(bytes);
}

/// For reading and for pasting into a POSIX shell; we never do the latter ourselves.
std::string shell_word(const std::string& word) {
  constexpr const char* kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-/:=,@%+";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string command_line(const Plan& plan, const PlannedRank& rank) {
  std::string line;
  for (const auto& [name, value] : rank.env) line += name + "=" + shell_word(value) + " ";
  const char* unknown = plan.engine == EngineKind::tandem ? "tandem-runtime" : "ENGINE";
  line += rank.program.empty() ? unknown : shell_word(rank.program);
  for (const std::string& argument : rank.argv) line += " " + shell_word(argument);
  return printable(line, 16384);
}

std::string pack_line(const Plan& plan) {
  if (!plan.pack_path.empty()) return "the folder " + plan.pack_path;
  std::string line = plan.pack_repo + " at " + plan.pack_revision;
  if (!plan.pack_endpoint.empty()) line += " from " + plan.pack_endpoint;
  if (plan.files.empty()) {
    if (plan.download_bytes_total) line += ", about " + format_bytes(plan.download_bytes_total);
  } else {
    line += ", " + std::to_string(plan.files.size()) + " files, " + format_bytes(plan.download_bytes_total);
  }
  return line;
}

std::string context_line(const Plan& plan) {
  std::string line = std::to_string(plan.context_tokens) + " tokens";
  if (plan.largest_context_tokens) line += "; the largest that fits is " + std::to_string(plan.largest_context_tokens);
  return line;
}

std::string memory_tables(const Plan& plan) {
  Table ranks({"rank", "node", "device", "weights", "cache", "state", "work", "exchange", "floor", "needs"});
  for (const PlannedRank& rank : plan.ranks) {
    const MemoryTable& m = rank.memory;
    ranks.add({std::to_string(rank.rank), plan.nodes[static_cast<size_t>(rank.node)].name, rank.device,
               size(m.weights_bytes), size(m.kv_bytes), size(m.state_bytes), size(m.workspace_bytes),
               size(m.communication_bytes), size(m.floor_bytes),
               rank.memory_known ? format_bytes(m.total()) : "not known"});
  }
  Table nodes({"node", "address", "needs", "has"});
  for (const PlannedNode& node : plan.nodes)
    nodes.add({node.name, node.address, format_bytes(node.memory_needed_bytes),
               node.memory_bytes ? format_bytes(node.memory_bytes) : "not known"});
  return ranks.text() + "\n" + nodes.text();
}

std::string status_line(const Plan& plan) {
  switch (plan.status) {
    case PlanStatus::nothing_to_do:
      return "Nothing to do: all of this is true already.\n";
    case PlanStatus::changes:
      return plan.offline ? "Planned without looking at any machine.\n" : "Ready to go.\n";
    case PlanStatus::blocked:
      break;
  }
  std::string text = "Blocked:\n";
  for (const PlanReason& reason : plan.blocked) {
    text += "  - " + printable(reason.what) + "\n";
    if (!reason.where.empty()) text += "    where: " + printable(reason.where) + "\n";
    if (!reason.fix.empty()) text += "    fix:   " + printable(reason.fix) + "\n";
  }
  return text;
}

std::string_view status_name(PlanStatus status) {
  switch (status) {
    case PlanStatus::nothing_to_do:
      return "nothing_to_do";
    case PlanStatus::changes:
      return "changes";
    case PlanStatus::blocked:
      return "blocked";
  }
  return "";
}

Json rank_json(const Plan& plan, const PlannedRank& rank) {
  const MemoryTable& m = rank.memory;
  return {{"rank", rank.rank},
          {"node", plan.nodes[static_cast<size_t>(rank.node)].name},
          {"device", rank.device},
          {"folder", rank.folder},
          {"program", rank.program},
          {"argv", rank.argv},
          {"env", rank.env},
          {"memory_known", rank.memory_known},
          {"memory",
           {{"weights_bytes", m.weights_bytes},
            {"kv_bytes_per_token", m.kv_bytes_per_token},
            {"kv_bytes", m.kv_bytes},
            {"state_bytes_per_slot", m.state_bytes_per_slot},
            {"state_bytes", m.state_bytes},
            {"workspace_bytes", m.workspace_bytes},
            {"communication_bytes", m.communication_bytes},
            {"floor_bytes", m.floor_bytes},
            {"total_bytes", m.total()}}}};
}

}  // namespace

std::string plan_text(const Plan& plan) {
  std::ostringstream out;
  const auto plural = [](size_t n, const char* noun) { return std::to_string(n) + " " + noun + (n == 1 ? "" : "s"); };
  out << "Plan of " << plan.recipe_name << ": " << plural(plan.ranks.size(), "rank") << " on "
      << plural(plan.nodes.size(), "machine") << "\n\n";
  out << "  pack     " << printable(pack_line(plan)) << "\n";
  out << "  serves   " << plan.model_name << " at http://" << host_port(plan.listen_address, plan.http_port) << "/v1\n";
  out << "  context  " << context_line(plan) << "\n";
  if (plan.world_size > 1)
    out << "  ranks    meet at " << host_port(plan.rendezvous_address, plan.rendezvous_port) << "\n";
  out << "\n" << memory_tables(plan) << "\n";
  if (plan.weights_estimated && plan.weights.total_bytes)
    out << "  Weights are computed from the recipe; the pack's own headers will tell exactly.\n\n";
  Table stages({"stage", "", ""});
  for (const PlannedStage& stage : plan.stages)
    stages.add({std::string(stage_name(stage.stage)), stage.skip ? "skip" : "do", stage.summary});
  out << stages.text() << "\n";
  for (const PlannedRank& rank : plan.ranks) out << "  rank " << rank.rank << ": " << command_line(plan, rank) << "\n";
  out << "\n";
  for (const std::string& hook : plan.hooks) out << "  hook: " << printable(hook) << "\n";
  for (const std::string& note : plan.notes) out << "note: " << printable(note) << "\n";
  out << status_line(plan);
  return out.str();
}

nlohmann::ordered_json plan_json(const Plan& plan) {
  Json json = {{"schema_version", 1},
               {"recipe", plan.recipe_name},
               {"status", status_name(plan.status)},
               {"offline", plan.offline},
               {"model", plan.model_name},
               {"world_size", plan.world_size},
               {"engine", plan.engine == EngineKind::tandem ? "tandem" : "command"},
               {"endpoint", "http://" + host_port(plan.listen_address, plan.http_port)},
               {"rendezvous", host_port(plan.rendezvous_address, plan.rendezvous_port)},
               {"context_tokens", plan.context_tokens},
               {"largest_context_tokens", plan.largest_context_tokens}};
  json["pack"] = {{"repo", plan.pack_repo},
                  {"endpoint", plan.pack_endpoint},
                  {"revision", plan.pack_revision},
                  {"path", plan.pack_path},
                  {"download_bytes", plan.download_bytes_total},
                  {"download_bytes_left", plan.download_bytes_left}};
  json["pack"]["files"] = Json::array();
  for (const PlannedFile& file : plan.files)
    json["pack"]["files"].push_back({{"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256}});
  json["weights"] = {{"estimated", plan.weights_estimated},
                     {"total_bytes", plan.weights.total_bytes},
                     {"rank_bytes", plan.weights.rank_bytes},
                     {"component_bytes", plan.weights.component_bytes}};
  json["nodes"] = Json::array();
  for (const PlannedNode& node : plan.nodes)
    json["nodes"].push_back({{"name", node.name},
                             {"address", node.address},
                             {"link_address", node.link_address},
                             {"ranks", node.ranks},
                             {"memory_bytes", node.memory_bytes},
                             {"memory_needed_bytes", node.memory_needed_bytes},
                             {"pack_folder", node.pack_folder}});
  json["ranks"] = Json::array();
  for (const PlannedRank& rank : plan.ranks) json["ranks"].push_back(rank_json(plan, rank));
  json["start_order"] = plan.start_order;
  json["start_together"] = plan.start_together;
  json["stages"] = Json::array();
  for (const PlannedStage& stage : plan.stages)
    json["stages"].push_back({{"stage", stage_name(stage.stage)},
                              {"skip", stage.skip},
                              {"summary", stage.summary},
                              {"bytes", stage.bytes},
                              {"key", stage.key}});
  json["hooks"] = plan.hooks;
  json["blocked"] = Json::array();
  for (const PlanReason& reason : plan.blocked)
    json["blocked"].push_back({{"what", reason.what}, {"where", reason.where}, {"fix", reason.fix}});
  json["notes"] = plan.notes;
  return json;
}

}  // namespace tandem
