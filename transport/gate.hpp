// The start of an operation: the ranks of a host announce what they were called with, meet, and compare.
#pragma once

#include "transport/wait.hpp"

namespace vccl {

/// A peer's window as it announced it, checked against what is mapped of its memory.
struct PeerWindow {
  WindowKind kind = WindowKind::staged;
  std::byte* base = nullptr;  // mapped windows only
  std::size_t size = 0;
};

class Gate {
 public:
  Gate(Group& group, Waiter& waiter) : group_(group), waiter_(waiter) {}

  /// Announces this rank's part under group.sequence and waits for everybody on this host.
  /// Throws Error(mismatch) naming both sides when somebody announced something else.
  void pass(const Announcement& announcement);
  /// What the rank at `index` announced for the present operation.
  const OperationSlot& announced(int index) const { return slot(index); }
  /// A window of that announcement. Throws Error(protocol) for one outside of the rank's regions.
  PeerWindow window_of(int index, WindowRecord OperationSlot::Windows::* which) const;

  /// "rank 0 called A as operation 7 of group G, but rank 1 called B. ...": the text of every mismatch.
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

/// Whether a payload fits into the operation slot, in the place of the windows.
inline bool is_inline(const Announcement& announcement) {
  return !announcement.shows && announcement.payload_bytes > 0 &&
         announcement.payload_bytes <= OperationSlot::kInlineBytes;
}

/// The region of this rank that a window lies in, or nothing.
const Region* region_of(const Group& group, std::span<const std::byte> window);
/// The kind of a window: mapped when it lies in one of this rank's regions.
WindowKind kind_of(const Group& group, std::span<std::byte> window);

}  // namespace vccl
