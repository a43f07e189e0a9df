// The communicators of a group, of which each device has one.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/fork.hpp"
#include "csrc_pg/communicators/abort_when_interrupted.hpp"
#include "csrc_pg/communicators/device_communicator.hpp"
#include "csrc_pg/communicators/message_lane.hpp"
#include "csrc_pg/communicators/relatives.hpp"
#include "csrc_pg/communicators/store_adapter.hpp"
#include "csrc_pg/operations/recording.hpp"
#include "transport/claim.hpp"
#include "transport/common_call.hpp"
#include "transport/communicator.hpp"

namespace vccl {

/// Holds the communicators of a group. Thread-safe. In a forked child of the process that made the object,
/// get() throws and no other member does anything, because segments, sockets and places in the ring belong to
/// the parent.
class Communicators {
 public:
  struct Identity {
    std::string name;  // the group's name, for errors
    int rank = 0, size = 1;
    bool high_priority = false;
    std::vector<std::uint64_t> global_ranks;  // of the group's ranks
    std::string call, origin;                 // see Options
    bool distinct_cards = false;              // whether two ranks may not use the same card, as with NCCL
    // Called while the ranks meet for the first time. An Error that it throws is told to all ranks.
    std::function<void()> prepare = {};
    // With NCCL, a rank learns of a peer's failure from its own operations, and its calls begin until then.
    // Returns whether an operation of this rank has failed. Empty if a failure is raised by every call.
    std::function<bool()> knows_failure = {};
  };
  /// `relatives` are communicators of other groups. When a communicator is made here, it uses what they know
  /// about the ranks.
  Communicators(c10::intrusive_ptr<c10d::Store> store, Identity identity, std::vector<Relative> relatives);
  ~Communicators();

  /// Returns the communicator of `device` ("vdev:i" or "cpu"). The first call makes the communicator, which
  /// takes all ranks and at most `timeout`. If this fails, the call throws Error, and every later call throws
  /// it again. Throws Error, too, if the group was aborted or closed, or if one of its communicators has
  /// failed (that of a card itself, only if Identity::knows_failure agrees). `call` names the operation that
  /// needs the communicator ("all_reduce"), for the errors of ranks that wait for this one.
  std::shared_ptr<DeviceCommunicator> get(c10::Device device, Milliseconds timeout,
                                          const std::string& call = "init_process_group");
  /// Returns the lane for messages of `device`. Messages of every device go over the communicator of the CPU.
  /// Throws like get().
  std::shared_ptr<MessageLane> lane(c10::Device device, Milliseconds timeout);
  /// Returns the cards that have a communicator or messages, in ascending order.
  std::vector<c10::DeviceIndex> used_cards() const;
  /// Returns Communicator::id() of the CPU's communicator, also after the group was closed. Empty before it
  /// was made.
  const std::string& id() const { return id_; }
  /// Shows in the recording when this rank waits for the group's first use of a card.
  void show_meetings_in(std::shared_ptr<Recording> recording);
  /// Returns what texts call the ranks of the group.
  const RankNames& names() const { return names_; }
  /// Compares this rank's n-th call of `kind` with the other ranks'. Throws Error(mismatch).
  void agree_on_call(const std::string& kind, const CommonCall& call);
  /// Whether close() was called: the program destroys the group.
  bool closing() const noexcept { return closing_.load(std::memory_order_relaxed); }
  /// Returns what aborts the group for as long as it is there.
  const std::shared_ptr<GroupToAbort>& to_abort() const { return to_abort_; }
  /// Returns the communicators that exist.
  std::vector<std::shared_ptr<DeviceCommunicator>> all() const;
  /// Returns the communicators that exist as relatives of a group that is made from this one.
  std::vector<Relative> relatives(bool of_same_group) const;

  /// Fails every communicator, including one that is being made, so that every thread that waits for one
  /// throws. Never blocks.
  void abort(const std::string& reason) noexcept;
  /// Waits until the launched collectives and messages have ended, but aborts them after `patience`. Then
  /// leaves the group and frees everything. Later calls of get() throw. Further calls do nothing.
  void close(Milliseconds patience) noexcept;
  /// Returns the failure of a communicator. A failure that is not an abort is preferred.
  std::optional<Error> failure() const;

  /// Returns how many groups of this process, among those of several ranks, have a CPU communicator that was
  /// made before CPU memory was shared. Such a communicator always stages CPU tensors.
  static int that_stage_cpu_tensors();

 private:
  struct PerDevice {
    std::shared_ptr<DeviceCommunicator> made;
    std::shared_ptr<MessageLane> lane;
    std::optional<Error> failure;  // the failure to make the communicator
  };

  /// Announces, for as long as the result lives, over the CPU's communicator that this rank makes the
  /// communicator of a card. Returns null for the CPU's own.
  std::shared_ptr<void> announce(c10::Device device, const std::string& call) const;
  std::shared_ptr<DeviceCommunicator> make(c10::Device device, Milliseconds timeout);
  void claim_card(const std::string& prefix, c10::Device device) const;
  std::shared_ptr<StoreAdapter> adapter(const std::string& prefix) const;
  std::shared_ptr<StoreAdapter> notices(const std::string& origin) const;
  ConnectStore connect_store() const;
  std::string begin_meeting(c10::Device device, CommunicatorConfig& config, std::unique_ptr<Claim>& claim);
  void check_usable(c10::Device device) const;
  void check_process() const;
  std::vector<std::shared_ptr<MessageLane>> lanes() const;
  void tell_peers_why() noexcept;
  bool inherited() const;

  const base::ProcessMark made_;
  const int process_ = getpid();  // for messages
  const c10::intrusive_ptr<c10d::Store> store_;
  const Identity identity_;
  const RankNames names_;
  const std::vector<Relative> relatives_;
  std::string id_;      // written once, while the group is made
  std::string prefix_;  // of the keys of the meeting in which the CPU's communicator was made; as id_
  int cards_ = 0;       // the number of meetings for cards that were begun; guarded by making_
  std::mutex calls_mutex_;
  std::map<std::string, int> calls_;  // the number of calls of each kind; guarded by calls_mutex_
  std::mutex making_;         // held while a communicator is made, because all ranks make theirs in the same
                              // order
  mutable std::mutex mutex_;  // guards what follows and closed_; never held while waiting
  std::shared_ptr<Recording> recording_;
  std::map<c10::Device, PerDevice, bool (*)(const c10::Device&, const c10::Device&)> by_device_;
  std::string closed_;  // why the group is closed; empty while it is open
  std::atomic<bool> closing_{false};
  std::shared_ptr<std::atomic<bool>> cancelled_;
  const std::shared_ptr<GroupToAbort> to_abort_;
  std::atomic<bool> stages_cpu_tensors_{false};
};

}  // namespace vccl
