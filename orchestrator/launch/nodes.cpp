#include "orchestrator/launch/nodes.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <sys/socket.h>

#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "orchestrator/fetch/fetch.h"
#include "orchestrator/node/facts.h"
#include "runtime/common/error.h"

namespace tandem::launch {

bool is_own_address(const std::string& address) {
  if (address == "localhost" || address.starts_with("127.") || address == "::1") return true;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return false;
  bool found = false;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    char host[NI_MAXHOST] = "";
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (getnameinfo(entry->ifa_addr, length, host, sizeof host, nullptr, 0, NI_NUMERICHOST) == 0)
      found = found || address == host;
  }
  freeifaddrs(list);
  return found;
}

std::unique_ptr<node::NodeTransport> connect_node(const ClusterNode& node) {
  if (!is_own_address(node.address))
    throw Error(ErrorKind::node, "`" + printable(node.address, 100) + "` is no address of this machine",
                "node " + node.name, "this version runs ranks on the machine where `tandem` runs");
  return node::start_local_node();
}

Nodes::Nodes(std::vector<ClusterNode> nodes, Connect connect)
    : nodes_(std::move(nodes)), clients_(nodes_.size()), connect_(std::move(connect)) {}

node::NodeClient& Nodes::client(size_t index) {
  auto& client = clients_.at(index);
  if (!client) client = std::make_unique<node::NodeClient>(nodes_[index].name, connect_(nodes_[index]));
  return *client;
}

std::vector<size_t> Nodes::all() const {
  std::vector<size_t> indices(nodes_.size());
  std::iota(indices.begin(), indices.end(), size_t{0});
  return indices;
}

void Nodes::for_each(const std::vector<size_t>& which, std::stop_token stop,
                     const std::function<void(size_t, std::stop_token)>& work) {
  std::stop_source both;
  const std::stop_callback forward(stop, [&both] { both.request_stop(); });
  std::mutex mutex;
  std::exception_ptr first;
  {
    std::vector<std::jthread> threads;
    for (const size_t index : which)
      threads.emplace_back([&, index] {
        try {
          work(index, both.get_token());
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
          both.request_stop();
        }
      });
  }
  if (first) std::rethrow_exception(first);
}

std::vector<NodeFacts> ask_nodes(Nodes& nodes, const Recipe& recipe, const Cluster& cluster, const PackFacts& pack,
                                 std::stop_token stop) {
  std::vector<NodeFacts> facts(nodes.size());
  nodes.for_each(nodes.all(), stop, [&](size_t index, std::stop_token cancel) {
    const ClusterNode& node = nodes.node(index);
    node::ProbeRequest request;
    request.name = node.name;
    request.hub_cache = node.hub_cache;
    request.ranks_folder = node.ranks_folder;
    request.state_folder = node.state_folder;
    request.job = recipe.name;
    request.repo = recipe.pack.url.empty() ? recipe.pack.repo : parse_pack_url(recipe.pack.url).repo;
    request.commit = pack.commit;
    if (recipe.engine.kind == EngineKind::command)
      if (const auto program = cluster.programs.find(recipe.engine.program); program != cluster.programs.end())
        request.programs.push_back(program->second);
    facts[index] = node::node_facts_from_json(nodes.client(index).call("probe", to_json(request), {}, cancel));
  });
  return facts;
}

}  // namespace tandem::launch
