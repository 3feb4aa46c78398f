#include <algorithm>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <mutex>
#include <nlohmann/json.hpp>

#include "orchestrator/cli/commands.h"
#include "orchestrator/cli/console.h"
#include "orchestrator/launch/jobs.h"
#include "orchestrator/launch/up.h"
#include "orchestrator/node/rank_state.h"
#include "runtime/common/error.h"
#include "runtime/common/units.h"

namespace tandem::cli {
namespace {

using Json = nlohmann::ordered_json;

/// A job is known by its name; a recipe's file or name leads to it.
std::string job_name(const Arguments& arguments) {
  const auto jobs = launch::list_all_jobs();
  if (std::find(jobs.begin(), jobs.end(), arguments.recipe) != jobs.end()) return arguments.recipe;
  // A job that failed is no job any more, but its logs are kept and `up` points to them by name.
  const bool is_plain_name = arguments.recipe.find('/') == std::string::npos && !arguments.recipe.starts_with(".");
  if (is_plain_name && std::filesystem::is_directory(node::default_state_folder() / "logs" / arguments.recipe))
    return arguments.recipe;
  return load_recipe(load_options(arguments)).recipe.name;
}

Json link_json(const std::vector<fabric::LinkReport>& links) {
  Json all = Json::array();
  for (const fabric::LinkReport& link : links) all.push_back(Json(to_json(link)));
  return all;
}

Json answers_json(const health::Report& report) {
  Json answers = Json::array();
  for (const health::Answer& answer : report.answers)
    answers.push_back({{"prompt", answer.prompt},
                       {"text", answer.text},
                       {"finish_reason", answer.finish_reason},
                       {"seconds", answer.seconds}});
  return answers;
}

void print_up(const launch::UpResult& result) {
  std::cout << "\n"
            << result.plan.recipe_name << (result.already_up ? " is already up" : " is up") << "\n"
            << "  endpoint  " << result.endpoint << "\n"
            << "  model     " << result.health.model << ", " << result.plan.context_tokens << " tokens of context\n";
  for (const health::Answer& answer : result.health.answers)
    std::cout << "  asked     " << printable(answer.prompt, 200) << "\n"
              << "  answered  " << printable(answer.text, 400) << "\n";
  std::cout << "  stop it   tandem down " << result.plan.recipe_name << std::endl;
}

std::string age(int64_t since) {
  const int64_t seconds = std::max<int64_t>(1, std::time(nullptr) - since);
  return format_duration(std::chrono::seconds(seconds));
}

void print_status(const launch::JobStatus& job) {
  std::cout << job.name << "  " << launch::job_state_name(job.state);
  if (!job.reason.empty()) std::cout << ": " << printable(job.reason, 500);
  std::cout << "\n";
  if (job.record) {
    std::cout << "  endpoint  http://" << job.record->address << ":" << job.record->http_port << "/v1\n"
              << "  started   " << age(job.record->started_at) << " ago from " << printable(job.record->recipe_file)
              << "\n";
  }
  for (const launch::RankOnNode& rank : job.ranks) {
    const node::RankState& state = rank.status.state;
    std::cout << "  rank " << state.rank << "    " << rank.status.summary() << "  (node " << rank.node;
    if (rank.status.alive) std::cout << ", pid " << state.process.pid;
    if (state.restarts > 0) std::cout << ", " << state.restarts << " restarts";
    std::cout << ")\n";
    if (rank.status.failed() && !state.last_log_lines.empty())
      std::cout << "            last said: " << printable(state.last_log_lines.back(), 300) << "\n";
  }
}

Json status_json(const launch::JobStatus& job) {
  Json json = {{"name", job.name}, {"state", launch::job_state_name(job.state)}, {"reason", job.reason}};
  if (job.record) {
    json["endpoint"] = "http://" + job.record->address + ":" + std::to_string(job.record->http_port) + "/v1";
    json["started_at"] = job.record->started_at;
    json["recipe_file"] = job.record->recipe_file;
    json["launch_key"] = job.record->launch_key;
  }
  if (job.health) json["health"] = {{"phase", job.health->phase}, {"progress", job.health->progress}};
  json["ranks"] = Json::array();
  for (const launch::RankOnNode& rank : job.ranks) {
    Json entry = to_json(rank.status);
    entry["node"] = rank.node;
    json["ranks"].push_back(std::move(entry));
  }
  return json;
}

}  // namespace

int run_up(const Arguments& arguments, const Interrupts& interrupts) {
  const launch::UpResult result = [&] {
    StageDisplay display(std::cerr, display_options(arguments));
    return launch::up(load_options(arguments), display, interrupts.token());
  }();
  if (!arguments.json) {
    print_up(result);
    return 0;
  }
  print_json({{"schema_version", 1},
              {"job", result.plan.recipe_name},
              {"endpoint", result.endpoint},
              {"model", result.health.model},
              {"context_tokens", result.plan.context_tokens},
              {"already_up", result.already_up},
              {"answers", answers_json(result.health)},
              {"links", link_json(result.links)},
              {"rank_bytes_exchanged", result.health.rank_bytes_exchanged}});
  return 0;
}

int run_link(const Arguments& arguments, const Interrupts& interrupts) {
  DisplayOptions options = display_options(arguments);
  options.show_plan = false;
  StageDisplay display(std::cerr, options);
  const auto result =
      launch::run_until(launch::Stage::link, load_options(arguments), false, display, interrupts.token());
  if (arguments.json) print_json({{"schema_version", 1}, {"links", link_json(result.links)}});
  for (const fabric::LinkReport& link : result.links)
    if (!arguments.json) std::cout << link_text(link) << "\n";
  if (result.links.empty() && !arguments.json) std::cout << "one rank has no link\n";
  return 0;
}

int run_status(const Arguments& arguments) {
  std::vector<std::string> names;
  if (arguments.recipe.empty())
    names = launch::list_all_jobs();
  else
    names.push_back(job_name(arguments));
  int code = 0;
  Json jobs = Json::array();
  for (const std::string& name : names) {
    const launch::JobStatus job = launch::job_status(name);
    const bool asked_but_stopped = !arguments.recipe.empty() && job.state == launch::JobState::stopped;
    code = std::max(code, asked_but_stopped ? exit_code(ErrorKind::health) : job_state_exit_code(job.state));
    if (arguments.json)
      jobs.push_back(status_json(job));
    else
      print_status(job);
  }
  if (arguments.json)
    print_json({{"schema_version", 1}, {"jobs", jobs}});
  else if (names.empty())
    std::cout << "no jobs\n";
  return code;
}

int run_logs(const Arguments& arguments, const Interrupts& interrupts) {
  const std::string name = job_name(arguments);
  launch::Nodes nodes = launch::nodes_of(name);
  Json lines = Json::array();
  std::mutex one_line_at_a_time;
  nodes.for_each(nodes.all(), interrupts.token(), [&](size_t index, std::stop_token stop) {
    const nlohmann::json params = {{"job", name},
                                   {"state_folder", nodes.node(index).state_folder},
                                   {"lines", arguments.lines},
                                   {"rank", arguments.rank},
                                   {"follow", arguments.follow}};
    nodes.client(index).call(
        "logs", params,
        [&](const nlohmann::json& event) {
          const std::lock_guard lock(one_line_at_a_time);
          if (arguments.json && !arguments.follow)
            lines.push_back(Json(event));
          else if (arguments.json)
            std::cout << event.dump() << std::endl;
          else
            std::cout << "rank " << event.at("rank").dump() << " | " << event.value("line", "") << "\n" << std::flush;
        },
        stop);
  });
  if (arguments.json && !arguments.follow) print_json({{"schema_version", 1}, {"job", name}, {"lines", lines}});
  return 0;
}

int run_down(const Arguments& arguments) {
  if (arguments.all == !arguments.recipe.empty())
    throw Error(ErrorKind::usage, "down wants a recipe, or --all", "", "tandem down RECIPE");
  const std::vector<std::string> names =
      arguments.all ? launch::list_all_jobs() : std::vector<std::string>{job_name(arguments)};
  std::vector<Error> failures;
  Json jobs = Json::array();
  for (const std::string& name : names) {
    try {
      const launch::StopReport report = launch::down(name);
      jobs.push_back({{"name", name}, {"ranks", report.ranks.size()}});
      if (!arguments.json)
        std::cout << name << (report.ranks.empty() ? ": nothing runs" : ": stopped, nothing is left") << "\n";
    } catch (const Error& e) {
      failures.push_back(e);
      if (!arguments.json && names.size() > 1) std::cerr << e.report();
    }
  }
  if (!failures.empty()) throw failures.front();
  if (arguments.json)
    print_json({{"schema_version", 1}, {"stopped", jobs}});
  else if (names.empty())
    std::cout << "no jobs\n";
  return 0;
}

}  // namespace tandem::cli
