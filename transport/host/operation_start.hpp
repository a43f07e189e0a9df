// The start of an operation: the ranks of a host publish announcements, wait for each other, and compare.
#pragma once

#include "transport/host/waiter.hpp"

namespace vccl {

/// A peer's window as that peer announced it, checked against what is mapped of the peer's memory.
struct PeerWindow {
  WindowKind kind = WindowKind::staged;
  std::byte* base = nullptr;  // null for a window that is not mapped
  std::size_t size = 0;
};

class OperationStart {
 public:
  OperationStart(Group& group, Waiter& waiter) : group_(group), waiter_(waiter) {}

  /// Publishes this rank's announcement under group.sequence, and blocks until every rank on this host has
  /// published its own. Throws Error(mismatch) that names both sides when two signatures differ.
  void pass(const Announcement& announcement);
  /// Returns what the rank at `index` announced for the present operation.
  const OperationSlot& announced(int index) const { return slot(index); }
  /// Returns a window of the announcement of the rank at `index`. Throws Error(protocol) for a window that
  /// lies outside of that rank's regions.
  PeerWindow window_of(int index, WindowRecord OperationSlot::Windows::* which) const;

  /// Returns the error text for two ranks whose signatures differ: "rank 0 called A as operation 7 of group
  /// G, but rank 1 called B. ...". Other mismatches have texts of their own, where they are found: different
  /// algorithms (operation_start.cpp), messages (message_engine.cpp), deadlocks (deadlock_watch.cpp), and
  /// what the process group compares (csrc_pg/).
  static std::string mismatch_text(const Group& group, int rank, const Signature& signature, int other_rank,
                                   const Signature& other_signature);

 private:
  OperationSlot& slot(int index) const;
  void announce(const Announcement& announcement);
  WindowRecord record_of(std::span<std::byte> window) const;
  void copy_payload(const Announcement& announcement, OperationSlot& own) const;
  void compare() const;

  Group& group_;
  Waiter& waiter_;
};

/// Returns whether the announcement has a payload that fits into the operation slot, in the place of the
/// windows.
inline bool is_inline(const Announcement& announcement) {
  return !announcement.shows && announcement.payload_bytes > 0 &&
         announcement.payload_bytes <= OperationSlot::kInlineBytes;
}

/// Returns the region of this rank that contains the whole window, or null.
const Region* region_of(const Group& group, std::span<const std::byte> window);
/// Returns the kind of a window: mapped if it lies in one of this rank's regions, and staged otherwise.
WindowKind kind_of(const Group& group, std::span<std::byte> window);

}  // namespace vccl
