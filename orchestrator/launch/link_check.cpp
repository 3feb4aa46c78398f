#include "orchestrator/launch/link_check.h"

#include <exception>
#include <future>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "orchestrator/fabric/tcp_probe.h"
#include "runtime/common/error.h"

namespace tandem::launch {
namespace {

using nlohmann::json;

std::string random_token() {
  std::random_device random;
  std::string token;
  for (int i = 0; i < 32; ++i) token += "0123456789abcdef"[random() & 15];
  return token;
}

/// Connecting by "any address" or a name would not show which network is meant.
fabric::LinkReport measure(Nodes& nodes, const Plan& plan, size_t from, size_t to, std::stop_token stop) {
  const PlannedNode& asker = plan.nodes[from];
  const PlannedNode& answerer = plan.nodes[to];
  const std::string token = random_token();
  std::promise<int> port;
  std::future<int> port_known = port.get_future();
  std::stop_source serving;
  const std::stop_callback forward(stop, [&serving] { serving.request_stop(); });
  std::exception_ptr serve_failure;
  fabric::LinkReport report;
  std::exception_ptr probe_failure;
  {
    const std::jthread server([&] {
      bool told = false;
      try {
        nodes.client(to).call(
            "link_serve", {{"address", answerer.link_address}, {"token", token}},
            [&](const json& event) {
              if (!std::exchange(told, true)) port.set_value(event.at("port").get<int>());
            },
            serving.get_token());
      } catch (...) {
        serve_failure = std::current_exception();
        if (!told) port.set_exception(serve_failure);
      }
    });
    try {
      const json params = {{"source", asker.link_address},
                           {"address", answerer.link_address},
                           {"port", port_known.get()},
                           {"token", token}};
      report = fabric::link_report_from_json(nodes.client(from).call("link_probe", params, {}, stop));
    } catch (...) {
      probe_failure = std::current_exception();
      serving.request_stop();
    }
  }
  if (probe_failure) std::rethrow_exception(probe_failure);
  if (serve_failure) std::rethrow_exception(serve_failure);
  report.from.node = asker.name;
  report.to.node = answerer.name;
  return report;
}

}  // namespace

std::vector<fabric::LinkReport> measure_links(Nodes& nodes, const Plan& plan, const Recipe& recipe,
                                              std::stop_token stop) {
  std::vector<size_t> used;
  for (size_t n = 0; n < plan.nodes.size(); ++n)
    if (!plan.nodes[n].ranks.empty()) used.push_back(n);
  std::vector<fabric::LinkReport> reports;
  if (plan.world_size < 2) return reports;
  for (const size_t n : used) nodes.client(n);  // connected before threads share them
  if (used.size() == 1) reports.push_back(measure(nodes, plan, used[0], used[0], stop));
  for (size_t a = 0; a < used.size(); ++a)
    for (size_t b = a + 1; b < used.size(); ++b) reports.push_back(measure(nodes, plan, used[a], used[b], stop));
  fabric::LinkDemand demand;
  demand.transport = recipe.hardware.transport;
  demand.min_bits_per_second = recipe.hardware.min_bandwidth_bits_per_second;
  demand.max_latency = recipe.hardware.max_latency;
  for (fabric::LinkReport& report : reports) grade_link(report, demand);
  return reports;
}

void require_links(const std::vector<fabric::LinkReport>& reports) {
  for (const fabric::LinkReport& report : reports)
    if (report.grade == fabric::Grade::fail)
      throw Error(ErrorKind::link, report.cause + ": " + report.evidence,
                  "link " + report.from.node + " <-> " + report.to.node, report.fix);
}

}  // namespace tandem::launch
