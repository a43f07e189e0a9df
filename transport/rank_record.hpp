// What a rank tells everybody when it joins, and waiting for more of it while its process lives.
#pragma once

#include <string>

#include "transport/deadline.hpp"
#include "transport/error.hpp"
#include "transport/liveness.hpp"
#include "transport/store.hpp"

namespace vccl {

struct RankRecord {
  int rank = 0;
  std::string machine;    // machine_key()
  std::string host_id;    // VCCL_HOSTID: pretends several hosts on one machine
  std::int64_t pid = 0;   // its own view
  std::string pid_space;  // the namespace that number belongs to
  std::string socket;     // name of its hand-over listener
};

/// How often a wait looks whether its ranks still live, while the group forms.
inline constexpr Milliseconds kPeerLook{200};

/// The process of `them` as `us` sees it, going by the record: no socket has vouched for it yet.
PeerProcess process_of(const RankRecord& them, const RankRecord& us);

/// The error of `us` who see `them` die before the group is there.
Error died(const RankRecord& them, const RankRecord& us);

/// The value of a key that `them` sets. Throws Error(timeout), and Error(peer_dead) soon after they have died
/// without setting it.
std::string get_of(const RankRecord& them, const RankRecord& us, Store& store, const std::string& key,
                   const Deadline& deadline);

}  // namespace vccl
