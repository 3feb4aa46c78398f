#include "orchestrator/fabric/link_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/common/error.h"
#include "runtime/common/units.h"

namespace tandem::fabric {
namespace {

using nlohmann::json;

constexpr Transport kTransports[] = {Transport::loopback, Transport::tcp, Transport::roce};
constexpr Grade kGrades[] = {Grade::pass, Grade::warn, Grade::fail, Grade::unknown};

Grade worse(Grade a, Grade b) {
  return std::max(a, b);
}

struct Finding {
  Grade grade = Grade::pass;
  std::string evidence, cause, fix;
};

Finding judge_bandwidth(const LinkReport& report, const LinkDemand& demand) {
  const double worst = report.worst_bits_per_second();
  Finding finding;
  finding.evidence = format_bandwidth(report.forward.bits_per_second) + " out, " +
                     format_bandwidth(report.backward.bits_per_second) + " back";
  if (demand.min_bits_per_second <= 0) return finding;
  finding.evidence += " (recipe asks for " + format_bandwidth(static_cast<double>(demand.min_bits_per_second)) + ")";
  const auto wanted = static_cast<double>(demand.min_bits_per_second);
  if (worst >= wanted) return finding;
  finding.grade = worst < wanted / 2 ? Grade::fail : Grade::warn;
  const double best = std::max(report.forward.bits_per_second, report.backward.bits_per_second);
  finding.cause = worst < best / 2 ? "one direction is much slower than the other"
                                   : "the link is slower than the recipe was made for";
  finding.fix = "check that the link addresses in the cluster file belong to the fast cable, and its MTU on both ends";
  return finding;
}

Finding judge_latency(const LinkReport& report, const LinkDemand& demand) {
  Finding finding;
  finding.evidence = format_duration(report.latency_median) + " one way";
  if (demand.max_latency.count() <= 0) return finding;
  finding.evidence += " (recipe allows " + format_duration(demand.max_latency) + ")";
  if (report.latency_median <= demand.max_latency) return finding;
  finding.grade = report.latency_median > 2 * demand.max_latency ? Grade::fail : Grade::warn;
  finding.cause = "the link answers slower than the recipe was made for";
  finding.fix = "connect the nodes directly, without Wi-Fi or a busy switch in between";
  return finding;
}

Finding judge_transport(const LinkReport& report, const LinkDemand& demand) {
  Finding finding;
  if (demand.transport != "roce" || report.transport == Transport::roce) return finding;
  finding.evidence = "over " + std::string(transport_name(report.transport)) + " (recipe asks for roce)";
  finding.grade = Grade::fail;
  finding.cause = "no RDMA rail was found between these nodes";
  finding.fix = "connect the RoCE ports, or run with `--set hardware.link.transport=any`";
  return finding;
}

template <typename Enum, size_t N>
Enum from_name(const Enum (&values)[N], std::string_view (*name_of)(Enum), const std::string& name) {
  for (const Enum value : values)
    if (name_of(value) == name) return value;
  throw Error(ErrorKind::link, "a link report speaks of `" + printable(name, 64) + "`");
}

json direction_json(const DirectionResult& d) {
  return {{"bits_per_second", d.bits_per_second}, {"bytes", d.bytes}, {"elapsed_ns", d.elapsed.count()}};
}

DirectionResult direction_from_json(const json& j) {
  return {j.at("bits_per_second").get<double>(), j.at("bytes").get<int64_t>(),
          std::chrono::nanoseconds(j.at("elapsed_ns").get<int64_t>())};
}

json endpoint_json(const LinkEndpoint& e) {
  return {{"node", e.node}, {"address", e.address}, {"device", e.device}};
}

LinkEndpoint endpoint_from_json(const json& j) {
  return {j.at("node").get<std::string>(), j.at("address").get<std::string>(), j.at("device").get<std::string>()};
}

}  // namespace

std::string_view transport_name(Transport transport) {
  switch (transport) {
    case Transport::loopback:
      return "loopback";
    case Transport::tcp:
      return "tcp";
    case Transport::roce:
      return "roce";
  }
  return "tcp";
}

std::string_view grade_name(Grade grade) {
  switch (grade) {
    case Grade::pass:
      return "pass";
    case Grade::warn:
      return "warn";
    case Grade::fail:
      return "fail";
    case Grade::unknown:
      return "unknown";
  }
  return "unknown";
}

double LinkReport::worst_bits_per_second() const {
  return std::min(forward.bits_per_second, backward.bits_per_second);
}

void grade_link(LinkReport& report, const LinkDemand& demand) {
  report.cause = report.fix = report.evidence = "";
  if (report.forward.bytes == 0 || report.backward.bytes == 0 || report.round_trips == 0) {
    report.grade = Grade::unknown;
    report.evidence = "nothing was measured";
    return;
  }
  report.grade = Grade::pass;
  for (const Finding& finding :
       {judge_transport(report, demand), judge_bandwidth(report, demand), judge_latency(report, demand)}) {
    if (!finding.evidence.empty()) report.evidence += (report.evidence.empty() ? "" : ", ") + finding.evidence;
    if (finding.grade != Grade::pass && worse(report.grade, finding.grade) != report.grade) {
      report.cause = finding.cause;  // of the worst finding; the evidence lists them all
      report.fix = finding.fix;
    }
    report.grade = worse(report.grade, finding.grade);
  }
  if (report.transport == Transport::loopback && report.grade != Grade::pass) {
    report.grade = Grade::warn;
    report.cause = "both ranks run on one machine, so the link the recipe was made for is not in use";
    report.fix = "";
  }
}

json to_json(const LinkReport& r) {
  return {{"from", endpoint_json(r.from)},
          {"to", endpoint_json(r.to)},
          {"transport", transport_name(r.transport)},
          {"forward", direction_json(r.forward)},
          {"backward", direction_json(r.backward)},
          {"latency_min_ns", r.latency_min.count()},
          {"latency_median_ns", r.latency_median.count()},
          {"round_trips", r.round_trips},
          {"grade", grade_name(r.grade)},
          {"evidence", r.evidence},
          {"cause", r.cause},
          {"fix", r.fix}};
}

LinkReport link_report_from_json(const json& j) {
  try {
    LinkReport r;
    r.from = endpoint_from_json(j.at("from"));
    r.to = endpoint_from_json(j.at("to"));
    r.transport = from_name(kTransports, transport_name, j.at("transport").get<std::string>());
    r.forward = direction_from_json(j.at("forward"));
    r.backward = direction_from_json(j.at("backward"));
    r.latency_min = std::chrono::nanoseconds(j.at("latency_min_ns").get<int64_t>());
    r.latency_median = std::chrono::nanoseconds(j.at("latency_median_ns").get<int64_t>());
    r.round_trips = j.at("round_trips").get<int>();
    r.grade = from_name(kGrades, grade_name, j.at("grade").get<std::string>());
    r.evidence = j.at("evidence").get<std::string>();
    r.cause = j.at("cause").get<std::string>();
    r.fix = j.at("fix").get<std::string>();
    return r;
  } catch (const json::exception& e) {
    throw Error(ErrorKind::link, std::string("a link report is not as expected: ") + e.what());
  }
}

std::string link_text(const LinkReport& r) {
  std::string text = r.from.node + " " + r.from.address + " <-> " + r.to.node + " " + r.to.address + "  " +
                     std::string(transport_name(r.transport)) + "  " + r.evidence + "  " +
                     std::string(grade_name(r.grade));
  if (!r.cause.empty()) text += "\n  cause: " + r.cause;
  if (!r.fix.empty()) text += "\n  fix:   " + r.fix;
  return text;
}

}  // namespace tandem::fabric
