#include <nlohmann/json.hpp>
#include <thread>

#include "orchestrator/fabric/tcp_probe.h"
#include "runtime/common/error.h"
#include "tests/catch.h"

using namespace tandem;
using namespace tandem::fabric;
using namespace std::chrono_literals;

namespace {

LinkReport measured(double forward, double backward, std::chrono::nanoseconds latency, Transport transport) {
  LinkReport report;
  report.from = {"n0", "10.0.0.1", ""};
  report.to = {"n1", "10.0.0.2", ""};
  report.transport = transport;
  report.forward = {forward, 1000, 1ms};
  report.backward = {backward, 1000, 1ms};
  report.latency_min = report.latency_median = latency;
  report.round_trips = 10;
  return report;
}

ProbeLimits small_limits() {
  ProbeLimits limits;
  limits.bytes = 8 << 20;
  limits.duration = 200ms;
  limits.round_trips = 20;
  return limits;
}

}  // namespace

TEST_CASE("a link is graded against what the recipe asks for", "[fabric]") {
  struct Row {
    double forward, backward;
    std::chrono::nanoseconds latency;
    Transport transport;
    LinkDemand demand;
    Grade grade;
  };
  const LinkDemand none;
  const LinkDemand fast{"any", 90'000'000'000, 50us};
  const LinkDemand roce{"roce", 0, 0ns};
  const Row row = GENERATE_COPY(values<Row>({
      {1e9, 1e9, 1ms, Transport::tcp, none, Grade::pass},
      {95e9, 96e9, 20us, Transport::tcp, fast, Grade::pass},
      {95e9, 80e9, 20us, Transport::tcp, fast, Grade::warn},
      {13e9, 95e9, 20us, Transport::tcp, fast, Grade::fail},
      {95e9, 95e9, 60us, Transport::tcp, fast, Grade::warn},
      {95e9, 95e9, 200us, Transport::tcp, fast, Grade::fail},
      {95e9, 95e9, 20us, Transport::tcp, roce, Grade::fail},
      {95e9, 95e9, 20us, Transport::roce, roce, Grade::pass},
      {10e9, 10e9, 5us, Transport::loopback, fast, Grade::warn},
      {10e9, 10e9, 5us, Transport::loopback, roce, Grade::warn},
      {10e9, 10e9, 5us, Transport::loopback, none, Grade::pass},
  }));
  LinkReport report = measured(row.forward, row.backward, row.latency, row.transport);
  grade_link(report, row.demand);
  INFO(link_text(report));
  CHECK(report.grade == row.grade);
  CHECK(report.cause.empty() == (row.grade == Grade::pass));
  CHECK_FALSE(report.evidence.empty());
}

TEST_CASE("a link that was not measured is unknown, neither good nor bad", "[fabric]") {
  LinkReport report;
  grade_link(report, {"any", 1, 1ns});
  CHECK(report.grade == Grade::unknown);
}

TEST_CASE("a link report survives its JSON", "[fabric]") {
  LinkReport report = measured(13e9, 95e9, 20us, Transport::tcp);
  grade_link(report, {"any", 90'000'000'000, 50us});
  const LinkReport copy = link_report_from_json(to_json(report));
  CHECK(to_json(copy) == to_json(report));
  CHECK_THROWS_AS(link_report_from_json({{"from", 1}}), Error);
}

TEST_CASE("a probe moves bytes both ways over a loopback address", "[fabric]") {
  const std::string address = GENERATE("127.0.0.1", "::1");
  std::unique_ptr<TcpProbeServer> server;
  try {
    server = std::make_unique<TcpProbeServer>(address, "secret");
  } catch (const Error&) {
    TANDEM_SKIP("this machine has no " + address);
  }
  std::jthread serving([&] { server->serve(small_limits()); });
  const LinkReport report = probe_tcp("", address, server->port(), "secret", small_limits());
  CHECK(report.transport == Transport::loopback);
  CHECK(report.forward.bytes > 0);
  CHECK(report.forward.bytes <= (8 << 20) + (1 << 20));
  CHECK(report.backward.bytes > 0);
  CHECK(report.forward.bits_per_second > 0);
  CHECK(report.latency_min.count() > 0);
  CHECK(report.latency_min <= report.latency_median);
  CHECK(report.round_trips == 20);
}

TEST_CASE("a stranger without the token neither gets an answer nor uses up the probe", "[fabric]") {
  TcpProbeServer server("127.0.0.1", "secret");
  std::jthread serving([&] { server.serve(small_limits()); });
  CHECK_THROWS_WITH(probe_tcp("", "127.0.0.1", server.port(), "guess", small_limits()),
                    ContainsSubstring("the peer closed the link probe") || ContainsSubstring("the link broke"));
  CHECK(probe_tcp("", "127.0.0.1", server.port(), "secret", small_limits()).forward.bytes > 0);
}

TEST_CASE("every wait of a probe has an end", "[fabric]") {
  ProbeLimits limits = small_limits();
  limits.timeout = 100ms;
  TcpProbeServer server("127.0.0.1", "secret");
  CHECK_THROWS_WITH(server.serve(limits), ContainsSubstring("no peer came"));
  // The port is open and nobody serves it.
  CHECK_THROWS_WITH(probe_tcp("", "127.0.0.1", server.port(), "secret", limits),
                    ContainsSubstring("stopped answering"));
  std::stop_source stop;
  stop.request_stop();
  CHECK_THROWS_WITH(server.serve(small_limits(), stop.get_token()), ContainsSubstring("interrupted"));
}

TEST_CASE("a closed port and a name instead of an address are refused with a reason", "[fabric]") {
  int port = 0;
  {
    const TcpProbeServer server("127.0.0.1", "secret");
    port = server.port();
  }
  CHECK_THROWS_WITH(probe_tcp("", "127.0.0.1", port, "secret", small_limits()), ContainsSubstring("refused"));
  CHECK_THROWS_WITH(TcpProbeServer("localhost", "x"), ContainsSubstring("`localhost` is no numeric address"));
  CHECK_THROWS_WITH(TcpProbeServer("203.0.113.1", "x"), ContainsSubstring("cannot listen there"));
}
