// What the parts of one communicator share: who and where the ranks are, and the operation under way.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/bootstrap/host_group.hpp"
#include "transport/messages/message_regions.hpp"
#include "transport/state/failure.hpp"
#include "transport/support/log.hpp"
#include "transport/support/text.hpp"

namespace vccl {

class Meeting;

/// This rank's window, and whether it is mapped or staged.
struct Window {
  std::span<std::byte> bytes;
  WindowKind kind = WindowKind::staged;
};

struct Group {
  std::string name;
  std::string device;  // the device of its operations, for messages; may be empty
  int rank = 0;
  int size = 1;
  std::string (*describe)(const Signature&) = nullptr;
  Log log;
  HostGroup host;
  std::vector<Region> regions;  // this rank's regions, given when the communicator was made
  AddedRegions added_regions;   // regions that this rank has added since then; for messages alone
  int cores = 1;                // how many cores the ranks on this host may use
  bool oversubscribed = false;  // the ranks have to take turns on the cores; the same value on each rank

  // The operation under way. `sequence` is 0 before the first operation.
  std::atomic<std::uint64_t> sequence{0};
  Signature signature;
  Window window;
  Deadline deadline{};

  // Called for links to other hosts; empty if there are none.
  std::function<void()> pump;            // receives what has arrived
  std::function<void()> spread_failure;  // sends the failure to the neighbours; may be called on any thread

  Meeting* meeting = nullptr;  // set while the communicator is being made: every wait looks at it too
  // The processes of ranks on this machine that count as being on other hosts.
  std::map<int, PeerProcess> elsewhere;
  std::shared_ptr<Earlier> earlier;  // may be null

  Failure failure() const { return Failure(host.failure()); }
  RankLine& own_line() const { return host.line(host.index); }
  /// Records a failure for every rank of this host and wakes all of them. Only the first failure counts.
  void fail(ErrorCode code, const std::string& what) const noexcept;
  /// Throws the failure if there is one.
  void check() const {
    if (failure().happened()) throw failure().error();
  }
  /// Calls fail() because a peer has left or died, as `what` says. Ranks that died are why other ranks leave,
  /// so the text names the dead ranks as well, whichever rank was waited for.
  void fail_for_end(ErrorCode code, const std::string& what) const noexcept;
  /// Returns how a rank of this machine ended, or nothing while the rank lives.
  std::optional<RankEnd> end_of(int rank) const noexcept;
  /// Calls fail(), and then throws the first failure.
  [[noreturn]] void raise(ErrorCode code, const std::string& what) const;
  [[noreturn]] void raise_for_end(ErrorCode code, const std::string& what) const;

  /// Returns "rank 3 left group G", with the reason that the rank gave, if any.
  std::string left_text(int rank, const std::string& reason) const;
  /// Returns the same text for the rank at `index` of this host.
  std::string left_text(int index) const;

  /// Calls raise() for a thread that was interrupted `by` a signal while it waited for `whom`.
  [[noreturn]] void raise_interrupted(const std::string& by, const std::string& whom, const char* what) const;

  std::string describe_signature(const Signature& signature) const;
  /// Returns "all_reduce(float32, 1024 elements, SUM) on cpu, operation 7 of group default_pg", for messages
  /// that compare calls of several communicators.
  std::string call_text() const;
  /// Returns "all_reduce(float32, 1024 elements, SUM) (operation 7 of group default_pg)", for messages.
  std::string operation_text() const;
};

}  // namespace vccl
