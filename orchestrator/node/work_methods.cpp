#include "orchestrator/node/work_methods.h"

#include <nlohmann/json.hpp>

#include "orchestrator/fabric/tcp_probe.h"
#include "orchestrator/fetch/fetch.h"
#include "orchestrator/node/cancel_flag.h"
#include "orchestrator/node/facts.h"
#include "orchestrator/split/split.h"
#include "runtime/common/error.h"
#include "runtime/common/units.h"

namespace tandem::node {
namespace {

using nlohmann::json;

std::vector<HubFile> expected_files(const json& params) {
  std::vector<HubFile> files;
  for (const json& file : params.value("expected", json::array()))
    files.push_back({file.at("path").get<std::string>(), file.at("size").get<int64_t>(),
                     file.at("sha256").get<std::string>(), file.value("git_sha1", "")});
  return files;
}

json fetch_result(const FetchResult& result) {
  return {{"commit", result.commit},
          {"folder", result.snapshot.string()},
          {"bytes_total", result.bytes_total},
          {"bytes_downloaded", result.bytes_downloaded}};
}

json fetch(const Request& request) {
  const json& params = request.params;
  const CancelFlag cancel(request.stop);
  const auto tell = [&](const FetchProgress& p) {
    request.send_event({{"bytes_done", p.bytes_done},
                        {"bytes_total", p.bytes_total},
                        {"text", format_progress(p)},
                        {"message", p.message}});
  };
  if (const std::string folder = params.value("folder", ""); !folder.empty())
    return fetch_result(verify_folder(folder, expected_files(params), tell, cancel.get()));
  FetchOptions options;
  options.repo = params.at("repo").get<std::string>();
  options.revision = params.at("revision").get<std::string>();
  options.hub = hub_options_from_environment();
  if (const std::string endpoint = params.value("endpoint", ""); !endpoint.empty()) options.hub.endpoint = endpoint;
  options.cache = params.value("hub_cache", "");
  options.expected = expected_files(params);
  options.verify = params.value("verify", false);
  return fetch_result(fetch_pack(options, tell, cancel.get()));
}

json split(const Request& request) {
  const json& params = request.params;
  const CancelFlag cancel(request.stop);
  SplitOptions options;
  options.pack_folder = params.at("pack_folder").get<std::string>();
  options.ranks_folder = params.at("ranks_folder").get<std::string>();
  options.pack_key = params.at("pack_key").get<std::string>();
  options.pack_repo = params.at("repo").get<std::string>();
  options.pack_commit = params.at("commit").get<std::string>();
  options.world_size = params.at("world_size").get<int>();
  options.ranks = params.at("ranks").get<std::vector<int>>();
  const SplitResult result = split_pack(
      options,
      [&](const SplitProgress& p) {
        request.send_event({{"bytes_done", p.bytes_done},
                            {"bytes_total", p.bytes_total},
                            {"text", format_bytes(p.bytes_done) + " of " + format_bytes(p.bytes_total)}});
      },
      cancel.get());
  json ranks = json::array();
  for (const auto& rank : result.ranks)
    ranks.push_back({{"rank", rank.rank},
                     {"folder", rank.folder.string()},
                     {"already_there", rank.already_there},
                     {"bytes", rank.bytes}});
  return {{"ranks", ranks}};
}

json link_serve(const Request& request) {
  fabric::TcpProbeServer server(request.params.at("address").get<std::string>(),
                                request.params.at("token").get<std::string>());
  request.send_event({{"port", server.port()}});
  server.serve({}, request.stop);
  return json::object();
}

json link_probe(const Request& request) {
  const json& params = request.params;
  return to_json(fabric::probe_tcp(params.at("source").get<std::string>(), params.at("address").get<std::string>(),
                                   params.at("port").get<int>(), params.at("token").get<std::string>(), {},
                                   request.stop));
}

}  // namespace

Methods work_methods() {
  return {{"probe", [](const Request& r) { return to_json(gather_facts(probe_request_from_json(r.params))); }},
          {"fetch", fetch},
          {"split", split},
          {"link_serve", link_serve},
          {"link_probe", link_probe}};
}

}  // namespace tandem::node
