#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tandem::fabric {

/// How two ranks' bytes travel.
enum class Transport { loopback, tcp, roce };
std::string_view transport_name(Transport transport);

/// `unknown` is an answer: a check that cannot decide must not say "pass" or "fail".
enum class Grade { pass, warn, fail, unknown };
std::string_view grade_name(Grade grade);

struct LinkEndpoint {
  std::string node;     ///< name in the plan
  std::string address;  ///< the ranks' own network
  std::string device;   ///< RDMA device or interface; "" when the kernel chose
};

/// What was measured one way. Zero: not measured.
struct DirectionResult {
  double bits_per_second = 0;
  int64_t bytes = 0;
  std::chrono::nanoseconds elapsed{0};
};

/// One link between two ranks, however it was proved. The same type serves loopback, TCP and RoCE rails.
struct LinkReport {
  LinkEndpoint from, to;
  Transport transport = Transport::tcp;
  DirectionResult forward;                  ///< from -> to
  DirectionResult backward;                 ///< to -> from
  std::chrono::nanoseconds latency_min{0};  ///< one way: half a round trip
  std::chrono::nanoseconds latency_median{0};
  int round_trips = 0;

  Grade grade = Grade::unknown;
  std::string evidence;  ///< the numbers that decided, with what they were held against
  std::string cause;     ///< likeliest reason when it is not a pass; "" otherwise
  std::string fix;       ///< what to do about it; "" otherwise

  double worst_bits_per_second() const;
};

/// What the recipe asks of the link (hardware.link). Zero: no demand.
struct LinkDemand {
  std::string transport = "any";  ///< "any", "tcp", "roce"
  int64_t min_bits_per_second = 0;
  std::chrono::nanoseconds max_latency{0};
};

/// Fills in grade, evidence, cause and fix from the measured values.
///   fail     less than half the demanded bandwidth, more than twice the latency, or the wrong transport
///   warn     short of the demand by less than that
///   unknown  nothing was measured
/// Ranks on one machine talk over its memory: the demand is about a cable that is not in use, so loopback warns at
/// most.
void grade_link(LinkReport& report, const LinkDemand& demand);

nlohmann::json to_json(const LinkReport& report);
LinkReport link_report_from_json(const nlohmann::json& json);

/// "node-a 10.0.0.1 <-> node-b 10.0.0.2  tcp  97.2 Gbit/s out, 96.8 Gbit/s back, 12 us  pass", then cause and fix.
std::string link_text(const LinkReport& report);

}  // namespace tandem::fabric
