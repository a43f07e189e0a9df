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

/// Only the owner of the current operation may use it.
class OperationStart {
 public:
  OperationStart(const Group& group, const CurrentOperation& operation, FailureChannel& failures,
                 Waiter& waiter)
      : group_(group), operation_(operation), failures_(failures), waiter_(waiter) {}

  /// Publishes this rank's announcement under the operation's number, and blocks until every rank on this
  /// host has published its own. Throws Error(mismatch) that names both sides when two signatures differ.
  void pass(const Announcement& announcement);
  /// Returns what the rank at `index` announced for the present operation.
  const OperationSlot& announced(int index) const { return slot(index); }
  /// Returns a window of the announcement of the rank at `index`. Throws Error(protocol) for a window that
  /// lies outside of that rank's regions.
  PeerWindow window_of(int index, WindowRecord OperationSlot::Windows::* which) const;

 private:
  OperationSlot& slot(int index) const;
  void announce(const Announcement& announcement);
  WindowRecord record_of(std::span<std::byte> window) const;
  void copy_payload(const Announcement& announcement, OperationSlot& own) const;
  void compare() const;
  void raise_refusals() const;

  const Group& group_;
  const CurrentOperation& operation_;
  FailureChannel& failures_;
  Waiter& waiter_;
};

/// Returns whether the announcement has a payload that fits into the operation slot, in the place of the
/// windows.
inline bool is_inline(const Announcement& announcement) {
  return !announcement.shows && announcement.payload_bytes > 0 &&
         announcement.payload_bytes <= OperationSlot::kInlineBytes;
}

}  // namespace vccl
