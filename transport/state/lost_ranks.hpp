// The ranks of a group that have died, or cannot be reached, as far as the ranks of one host know.
#pragma once

#include <optional>

#include "transport/state/group.hpp"

namespace vccl {

/// A view of the list in the host's control memory. The list only grows. It has room for kMost ranks, and
/// further ones are left out. Any thread of any rank of the host may call any member.
class LostRanks {
 public:
  static constexpr int kMost = LostRecord::kMost;

  /// The control memory of the group's host must be mapped.
  explicit LostRanks(const Group& group) : record_(group.host.lost()), size_(group.size) {}

  /// Adds `rank` unless it is in the list.
  void add(int rank) noexcept;
  /// Returns the rank at `index`, or nothing if the list is shorter.
  std::optional<int> at(int index) const noexcept;
  bool contains(int rank) const noexcept;

 private:
  LostRecord& record_;
  const int size_;
};

}  // namespace vccl
