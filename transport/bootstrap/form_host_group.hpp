// How the ranks of a group that share this host find each other and share memory.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "transport/bootstrap/rank_record.hpp"
#include "transport/bootstrap/unix_socket.hpp"
#include "transport/communicator.hpp"
#include "transport/shared/host_group.hpp"

namespace vccl {

/// Forms the host group of the ranks in `candidates`, which claim to be on this host. They ascend and include
/// this rank. The lowest rank leads: it makes the control memory, and hands it and all ranks'
/// regions to the others. A candidate belongs to the host group once it has mapped the control memory and
/// read the nonce in it. A candidate that cannot reach the leader becomes a host of its own. While ranks wait
/// for each other they call `look`, which may throw why the wait is in vain. Throws Error(bootstrap | timeout
/// | protocol | system | peer_dead | aborted).
HostGroup form_host_group(
    Store& store, const RankNames& names, const std::vector<RankRecord>& candidates, int rank,
    std::span<const Region> regions, Listener& listener, const Deadline& deadline,
    const std::function<void()>& look = [] {});

}  // namespace vccl
