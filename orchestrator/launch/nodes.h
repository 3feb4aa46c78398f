#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "orchestrator/node/client.h"
#include "orchestrator/plan/plan.h"
#include "orchestrator/recipe/recipe.h"

namespace tandem::launch {

/// How a node is reached. The seam for tests, and for channels to other machines.
using Connect = std::function<std::unique_ptr<node::NodeTransport>(const ClusterNode&)>;

/// A helper process when the node's address is one of this machine's.
/// @throws Error  kind `node` for an address of another machine
std::unique_ptr<node::NodeTransport> connect_node(const ClusterNode& node);

/// The address belongs to this machine: 127.0.0.0/8, ::1, localhost, or an address of one of its interfaces.
bool is_own_address(const std::string& address);

/// The nodes of a run, connected when first needed.
class Nodes {
 public:
  explicit Nodes(std::vector<ClusterNode> nodes, Connect connect = connect_node);

  size_t size() const { return nodes_.size(); }
  const ClusterNode& node(size_t index) const { return nodes_[index]; }
  /// Thread-safe for different nodes.
  node::NodeClient& client(size_t index);

  /// Runs `work` for every index of `which` at once, each on a thread of its own. The first error cancels the others
  /// and is thrown when all have ended.
  void for_each(const std::vector<size_t>& which, std::stop_token stop,
                const std::function<void(size_t, std::stop_token)>& work);
  std::vector<size_t> all() const;

 private:
  std::vector<ClusterNode> nodes_;
  std::vector<std::unique_ptr<node::NodeClient>> clients_;
  Connect connect_;
};

/// Facts of every node, for the plan. @throws Error
std::vector<NodeFacts> ask_nodes(Nodes& nodes, const Recipe& recipe, const Cluster& cluster, const PackFacts& pack,
                                 std::stop_token stop);

}  // namespace tandem::launch
