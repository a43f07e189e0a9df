// What a rank publishes when it joins, and how to wait for another key of a rank while its process lives.
#pragma once

#include <string>

#include "transport/deadline.hpp"
#include "transport/error.hpp"
#include "transport/rank_names.hpp"
#include "transport/store.hpp"
#include "transport/support/protocol.hpp"
#include "transport/system/peer_process.hpp"

namespace vccl {

struct RankRecord {
  int rank = 0;
  std::string machine;         // machine_key()
  std::string host_id;         // VCCL_HOSTID, which makes one machine pose as several hosts
  std::int64_t pid = 0;        // in the rank's own pid namespace
  std::string pid_space;       // the pid namespace that `pid` belongs to
  std::string socket;          // the name of the rank's hand-over listener
  bool shares_memory = false;  // whether the rank hands over memory
  std::uint64_t process = 0;   // DeadlockWatch::token()
};

/// Returns the key under which `rank` publishes its record.
std::string joined_key(int rank);
/// Encode a record, for a group of `size` ranks, and read it as read_record() has decoded it.
std::string encode(const RankRecord& record, int size);
RankRecord to_rank_record(const msgpack::Value& value);

/// Returns the process of `them` as `us` sees it. This relies on the record alone: no socket has confirmed
/// the pid yet.
PeerProcess process_of(const RankRecord& them, const RankRecord& us);

/// Returns the error of rank `us` if `them` dies before the communicator is made.
Error died(const RankRecord& them, const RankRecord& us, const RankNames& names);

}  // namespace vccl
