// In which order this process uses its groups, for VCCL_CHECK=order.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace vccl {

/// Counts the collectives of one group on this rank, and knows the groups that contain it.
///
/// Two ranks use groups in the same order if, at each collective of a group, both have called the same number
/// of collectives of every other group that both belong to. A group compares this for the groups that have
/// all its ranks, because all its ranks know those.
///
/// A group that was destroyed still counts, because the other ranks may destroy it later. After a failure of
/// a group, the groups that it contains are compared no more: its ranks may have called different numbers of
/// its collectives, and learn of the failure at different times. Thread-safe.
class GroupOrder {
 public:
  /// `name` is the same on every rank, and `ranks` are the numbers in the job. `begins_job` says that the
  /// groups before belong to an earlier job, as init_process_group() does: they count no more.
  GroupOrder(const std::string& name, std::vector<std::uint64_t> ranks, bool begins_job);
  ~GroupOrder();
  GroupOrder(const GroupOrder&) = delete;
  GroupOrder& operator=(const GroupOrder&) = delete;

  struct Place {
    /// Is the same on all ranks of the group if they have called the same number of collectives of each
    /// containing group before. 0 if they are not to be compared.
    std::uint32_t number = 0;
    std::uint64_t first = 0;  // FlightEntry::place_in_order of the first collective
  };
  /// Counts so many collectives.
  Place next(std::size_t calls);
  /// Returns whether this process has called collectives of two groups. Before that, its calls are in
  /// no circle.
  static bool uses_several() noexcept;
  /// Returns what is to be set when an operation of the group has failed. It keeps the object, because what
  /// fails after the group's end counts too.
  static std::shared_ptr<std::atomic<bool>> failure_mark(const std::shared_ptr<GroupOrder>& order) noexcept;
  /// Call this when the group was aborted.
  void note_failure() noexcept;
  /// Returns whether a group of this process has failed since the default group was made.
  static bool any_failed() noexcept;

 private:
  struct Past;
  struct Member;
  struct Members;

  const std::shared_ptr<Member> own_;
};

}  // namespace vccl
