// The layout of a host's control segment: what the ranks on one host write for each other.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "transport/communicator.hpp"
#include "transport/host.hpp"
#include "transport/message_channel.hpp"

namespace vccl {

// The counters live in memory that several processes map: they must be plain words, not locks.
static_assert(std::atomic<std::uint64_t>::is_always_lock_free &&
              std::atomic<std::uint32_t>::is_always_lock_free);

enum class WindowKind : std::uint32_t {
  mapped,  // in a region: peers read it in place
  staged,  // elsewhere: blocks are copied into the rank's slots
};

/// Where a window lies.
struct WindowRecord {
  WindowKind kind;
  std::uint32_t region;
  std::uint64_t offset;  // in the region
  std::uint64_t size;
};

/// What a rank announces for one operation. Written by the rank, then published by the release store of
/// `sequence`, which pairs with the acquire load of everyone who waits at the operation's gate.
///
/// Two of them, used by the parity of the sequence, are enough: a rank that begins operation k + 2 has passed
/// the gate of k + 1, so everybody has begun k + 1, hence has passed the gate of k and read the slot that is
/// overwritten now.
///
/// The same holds for what a rank reads of a payload, which it has done before it begins the next operation.
struct alignas(64) OperationSlot {
  static constexpr std::size_t kInlineBytes = 88;
  struct Windows {
    WindowRecord ring, input, output;
    std::uint64_t note;
  };

  std::atomic<std::uint64_t> sequence;
  Signature signature;
  std::uint32_t algorithm;
  // Which one it is follows from the algorithm (is_inline() of its announcement). The first 24 bytes of a
  // payload are in the line of the flag.
  union {
    Windows windows;
    alignas(8) std::byte payload[kInlineBytes];  // a longer one is in the rank's payload area
  };
};
static_assert(sizeof(OperationSlot) == 128, "the flag and what is read with it in one cache line");

enum class RankState : std::uint32_t { absent, present, left };

/// One rank's flags.
struct alignas(128) RankLine {
  static constexpr int kPhaseBits = 20;

  // Written by the rank alone. The counters go on for as long as the group lives.
  std::atomic<std::uint64_t> posted;    // blocks ready for the right neighbour
  std::atomic<std::uint64_t> consumed;  // blocks of the left neighbour that have been read
  std::atomic<std::uint64_t> phase;     // of Peers: the operation's sequence << kPhaseBits | its phase
  std::atomic<RankState> state;
  std::atomic<std::int32_t> core;  // where the rank ran last, a hint for those who wait for it

  // Where the rank sleeps, on a line of its own because peers write it. See wait.hpp.
  alignas(64) std::atomic<std::uint32_t> wakeups;  // futex word
  std::atomic<std::uint32_t> sleepers;
  std::atomic<std::uint64_t> claimed;  // the last operation in which the rank's share was claimed

  OperationSlot operations[2];

  UsableCores cores;  // written by the rank before its state
};
static_assert(sizeof(RankLine) == 640);
static_assert(Peers::kDone >> RankLine::kPhaseBits == 0);

/// The first failure on this host. A rank that has one to tell claims the record (none -> writing), fills it
/// in and publishes it with the release store of `set`, which pairs with the acquire load of those who read
/// the text.
struct alignas(64) FailureRecord {
  enum State : std::uint32_t { none, writing, set };
  static constexpr std::size_t kMaxText = 1024;

  std::atomic<std::uint32_t> state;
  alignas(64) ErrorCode code;
  std::uint32_t length;
  char text[kMaxText];
};

struct ControlHeader {
  static constexpr std::uint64_t kMagic = 0x7663636c00000004;  // "vccl", layout 4
  static constexpr std::size_t kNonceBytes = 32;

  std::uint64_t magic;
  char nonce[kNonceBytes];
  FailureRecord failure;
  // Of Peers: the operation's sequence << kPhaseBits | how many shares are done. Every rank counts here.
  alignas(128) std::atomic<std::uint64_t> shares_done;
};

/// Addresses in a mapped control segment for `ranks` ranks of one host: header, lines, every rank's slots and
/// payload areas, then what messages need. All but header and lines are sparse: a page costs memory from its
/// first use.
class ControlLayout {
 public:
  static constexpr std::size_t kPage = 4096;

  explicit ControlLayout(int ranks) : ranks_(static_cast<std::size_t>(ranks)) {}

  std::size_t bytes() const { return messages_offset() + messages(nullptr).bytes(); }
  static ControlHeader* header(std::byte* base) { return reinterpret_cast<ControlHeader*>(base); }
  static RankLine* line(std::byte* base, int rank) {
    return reinterpret_cast<RankLine*>(base + kPage) + rank;
  }
  std::byte* slots(std::byte* base, int rank) const {
    return base + slots_offset() + static_cast<std::size_t>(rank) * kSlotsOfRank;
  }
  /// Two areas a rank, used in turn as its operation slots are, and for the same reason.
  std::byte* payload(std::byte* base, int rank, std::uint64_t sequence) const {
    return slots(base, rank) + Communicator::kSlots * Communicator::kBlockBytes +
           (sequence & 1) * Peers::kPayloadBytes;
  }
  MessageLayout messages(std::byte* base) const {
    return MessageLayout(base ? base + messages_offset() : nullptr, ranks_);
  }

 private:
  static constexpr std::size_t kSlotsOfRank =
      Communicator::kSlots * Communicator::kBlockBytes + 2 * Peers::kPayloadBytes;
  static_assert(Peers::kScratchBytes <= Communicator::kSlots * Communicator::kBlockBytes);
  std::size_t slots_offset() const { return kPage + (ranks_ * sizeof(RankLine) + kPage - 1) / kPage * kPage; }
  std::size_t messages_offset() const { return slots_offset() + ranks_ * kSlotsOfRank; }
  std::size_t ranks_;
};
static_assert(sizeof(ControlHeader) <= ControlLayout::kPage);

}  // namespace vccl
