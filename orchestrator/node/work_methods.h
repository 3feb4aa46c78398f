#pragma once

#include "orchestrator/node/server.h"

namespace tandem::node {

/// The methods about a node's machine, disk and network.
///   probe       {ProbeRequest}      -> {NodeFacts}
///   fetch       {repo, endpoint, revision, hub_cache, expected: [file], verify}, or {folder, expected}
///               events {bytes_done, bytes_total, text}  -> {commit, folder, bytes_total, bytes_downloaded}
///   split       {pack_folder, ranks_folder, pack_key, repo, commit, world_size, ranks}
///               events {bytes_done, bytes_total, text}  -> {ranks: [{rank, folder, already_there, bytes}]}
///   link_serve  {address, token}    event {port}, then answers one probe  -> {}
///   link_probe  {source, address, port, token}  -> {LinkReport}
Methods work_methods();

}  // namespace tandem::node
