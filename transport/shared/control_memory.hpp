// The layout of a host's control memory: what the ranks of one host write for each other.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/cores.hpp"
#include "transport/communicator.hpp"
#include "transport/shared/message_channel.hpp"
#include "transport/shared/wait_record.hpp"

namespace vccl {

// The counters lie in memory that several processes map, so they must be lock-free.
static_assert(std::atomic<std::uint64_t>::is_always_lock_free &&
              std::atomic<std::uint32_t>::is_always_lock_free);

enum class WindowKind : std::uint32_t {
  mapped,  // the window lies in a region: peers read it in place
  staged,  // the window lies elsewhere: blocks are copied through the rank's slots
};

/// Says where a window lies.
struct WindowRecord {
  WindowKind kind;
  std::uint32_t region;
  std::uint64_t offset;  // in the region
  std::uint64_t size;
};

/// What a rank announces for one operation. The rank writes it and then publishes it with the store of
/// `sequence`. That store pairs with the load of every rank that waits at the operation's start.
///
/// Two slots, used by the parity of the sequence, are enough. A rank that begins operation k + 2 has passed
/// the start of k + 1, so every rank has begun k + 1. Hence every rank has passed the start of k and has read
/// the slot that is now overwritten.
///
/// The same holds for the payload, which every rank has read before it begins its next operation.
struct alignas(64) OperationSlot {
  static constexpr std::size_t kInlineBytes = 88;
  /// In `signature.checks` of a slot: the rank refuses the operation.
  static constexpr std::uint8_t kRefuses = 0x80;
  struct Windows {
    WindowRecord ring, input, output;
    std::uint64_t factor;
  };

  std::atomic<std::uint64_t> sequence;
  Signature signature;
  std::uint32_t algorithm, order;
  // kRefuses says whether the rank refuses the operation. Otherwise is_inline() of the announcement says
  // which member is used. The first 24 bytes of a payload are in the cache line of the flag.
  union {
    Windows windows;
    alignas(8) std::byte payload[kInlineBytes];  // a longer payload is in the rank's payload area
    Refusal refusal;
  };
};
static_assert(sizeof(OperationSlot) == 128, "the flag and what is read with it in one cache line");

enum class RankState : std::uint32_t { absent, present, left };

/// Why a rank left, if the reason lies outside of the group. The rank writes this before it sets its state to
/// `left`, which publishes the reason.
struct LeaveReason {
  static constexpr std::size_t kMaxText = 320;

  std::uint32_t length;  // 0: no reason was given
  char text[kMaxText];

  void write(const std::string& reason) noexcept;
  /// Returns the text as valid UTF-8, whatever the peer wrote.
  std::string read() const;
};

/// One rank's flags.
struct alignas(128) RankLine {
  static constexpr int kPhaseBits = 20;
  /// The last phase of an operation that the rank has given up. Its memory is its own again.
  static constexpr std::uint32_t kWithdrawn = Peers::kDeclined + 1;

  // Only the rank itself writes these. The counters go on for as long as the communicator lives.
  std::atomic<std::uint64_t> posted;    // blocks that are ready for the right neighbour
  std::atomic<std::uint64_t> consumed;  // blocks of the left neighbour that have been read
  std::atomic<std::uint64_t> phase;     // used by Peers: the operation's sequence << kPhaseBits | the phase
  std::atomic<RankState> state;
  std::atomic<std::int32_t> core;  // the core that the rank last ran on, a hint for waiting ranks

  // The words on which the rank sleeps, on a cache line of their own because peers write them. See
  // shared/flags.hpp.
  alignas(64) std::atomic<std::uint32_t> wakeups;  // futex word
  std::atomic<std::uint32_t> sleepers;
  std::atomic<std::uint64_t> claimed;  // the last operation in which the rank's work item was claimed

  OperationSlot operations[2];

  base::UsableCores cores;  // the rank writes this before its state

  // Describes a wait that lasts; see DeadlockWatch. `process` is the same number in all lines of one process.
  alignas(128) std::atomic<std::uint64_t> process;  // 0: not known yet
  std::atomic<std::uint64_t> meetings;              // how many meetings the rank has begun and announced here
  WaitRecord waits;

  LeaveReason leave_reason;
};
static_assert(offsetof(RankLine, process) == 640);
static_assert(RankLine::kWithdrawn >> RankLine::kPhaseBits == 0);

/// The first failure on this host. A rank that records a failure claims the record (none -> writing), fills
/// it in and publishes it with the store of `set`. That store pairs with the acquire load of every rank that
/// reads the text.
struct alignas(64) FailureRecord {
  enum State : std::uint32_t { none, writing, set };
  static constexpr std::size_t kMaxText = 3072;

  std::atomic<std::uint32_t> state;
  alignas(64) ErrorCode code;
  std::uint32_t length;
  char text[kMaxText];
};

/// The ranks that are known to have gone: each entry is a rank + 1, and the first 0 ends the list. Any rank
/// of the host appends.
struct LostRecord {
  static constexpr int kMost = 64;

  std::atomic<std::uint32_t> entries[kMost];
};

struct ControlHeader {
  static constexpr std::uint64_t kMagic = 0x7663636c0000000b;  // "vccl", layout 11
  static constexpr std::size_t kNonceBytes = 32;

  std::uint64_t magic;
  char nonce[kNonceBytes];
  FailureRecord failure;
  // Used by Peers: the operation's sequence << kPhaseBits | how many work items are done. Every rank
  // increments it.
  alignas(128) std::atomic<std::uint64_t> work_items_done;
  alignas(128) LostRecord lost;
};

/// Computes addresses in a mapped control memory for `ranks` ranks of one host. The header comes first, then
/// the lines, then every rank's slots and payload areas, then the part for messages. All but the header and
/// the lines are sparse: a page uses memory only after its first use.
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
  /// Returns the payload area for an operation. Each rank has two, used in turn as its operation slots are,
  /// and for the same reason.
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
