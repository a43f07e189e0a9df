// Who the ranks of a communicator are, and where they run: all that stays the same once the communicator is
// made.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/rank_names.hpp"
#include "transport/shared/host_group.hpp"
#include "transport/state/traffic.hpp"
#include "transport/support/log.hpp"

namespace vccl {

/// The thread that makes the communicator fills this in. Afterwards it is constant, so any thread may read
/// it, and the parts of the communicator refer to it as const. Only the DeadlockWatch reads it earlier: the
/// name, the rank, the names, the log, the host, the id, and what it has to know of the ranks on other hosts,
/// which are set before the communicator is added to the watch. What changes while ranks work together is not
/// here, but in the control memory, which `host` has the address of.
struct Group {
  std::string name;
  std::uint64_t id = 0;  // the same on every rank of the communicator, and of no other one
  std::string device;    // the device of its operations, for messages; may be empty
  int rank = 0;
  int size = 1;
  RankNames names;
  std::string (*describe)(const Signature&, const RankNames&) = nullptr;
  std::string (*describe_refusal)(const Refusal&) = nullptr;
  Log log;
  HostGroup host;
  std::vector<Region> regions;  // this rank's regions, given when the communicator was made
  Milliseconds warn_after{0};   // when a wait is worth a warning; 0: never
  int cores = 1;                // how many cores the ranks on this host may use
  // The ranks of this host have to take turns on the cores. The value is the same on each of them.
  bool oversubscribed = false;
  // The processes of ranks on this machine that count as being on other hosts.
  std::map<int, PeerProcess> elsewhere;
  std::map<int, std::string> host_names;  // of the ranks on other hosts
  // The processes of the ranks on other hosts, as the DeadlockWatch names them, and how many messages have
  // gone between this rank and each of them. Null if there is one host.
  std::map<int, std::uint64_t> far;
  std::shared_ptr<Traffic> traffic;
  ConnectStore connect_store;        // may be empty
  std::shared_ptr<Earlier> earlier;  // may be null

  RankLine& own_line() const { return host.line(host.index); }
  /// Return what texts call a rank of the group, and this rank: see RankNames::rank().
  std::string rank_text(int other, std::string_view remark = {}) const { return names.rank(other, remark); }
  std::string own_text() const { return names.rank(rank); }
  /// Returns the name of the rank's host, or an empty string for a rank of this host.
  std::string host_name(int rank) const;
  /// Returns how a rank of this machine ended, or nothing while the rank lives.
  std::optional<RankEnd> end_of(int rank) const noexcept;
  std::string describe_signature(const Signature& signature) const;
};

/// Returns the ranks on other hosts whose waits are looked at: of many, those that come after this rank.
std::vector<int> far_ranks(const Group& group);

}  // namespace vccl
