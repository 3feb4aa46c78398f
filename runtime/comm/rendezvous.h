#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/control_link.h"

namespace tandem::comm {

/// The control connections of one rank after all have met.
struct Meeting {
  /// Rank 0: one link per other rank. Other ranks: one link, to rank 0.
  std::map<int, ControlLink> links;
  /// The address of this machine that the others reached or that reached them: Gloo listens there, so that exchanges
  /// take the network the user named and never what the host name happens to resolve to.
  std::string local_address;
};

/// Rank 0 listens and lets the others in; the others try until rank 0 is there. In any order, until the deadline.
///
/// Rank 0 speaks first (`greeting`), so that a rank which reached some other service says so. A stranger without the
/// group's token, garbage, and a rank that is taken are turned away and the meeting goes on; settings that differ end
/// it for everyone, since restarting one rank alone would not help.
Meeting meet(const GroupOptions& options);

/// Key-value pairs of all ranks, merged, on every rank. All ranks call it together.
using Entries = std::map<std::string, std::vector<char>>;
Entries merge_entries(Meeting& meeting, int rank, const Entries& mine, Milliseconds timeout);

}  // namespace tandem::comm
