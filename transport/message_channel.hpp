// Messages between ranks of one host, as they lie in the host's control segment: a channel for each ordered
// pair of ranks, and for each rank a line where its message thread sleeps and the regions it has added.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "transport/communicator.hpp"
#include "transport/segment.hpp"

namespace vccl {

/// Where the message thread of a rank sleeps. All accesses are sequentially consistent: the sleeper says that
/// it sleeps and then looks at the channels once more, the waker writes to a channel and then looks whether
/// anybody sleeps; one of them sees the other (wait.hpp has the whole argument).
struct alignas(64) MessageLine {
  enum Sleep : std::uint32_t {
    awake,    // or there is no thread
    idle,     // nothing is under way: only a channel that fills up is worth a wake-up
    dozing,   // the same, but it looks for itself now and then: the rank's own calls need not wake it either
    waiting,  // for anything
  };
  std::atomic<std::uint32_t> wakeups;  // futex word
  std::atomic<std::uint32_t> sleep;
};

/// Wakes the rank's thread if it is waiting, or `idle_too`: if it sleeps at all.
void wake_messages(MessageLine& line, bool idle_too) noexcept;
/// Sleeps unless there was a wake-up since `seen` was read, for at most `time`.
void sleep_for_messages(MessageLine& line, std::uint32_t seen, std::chrono::nanoseconds time) noexcept;

/// A region as its rank announces it to peers who may open the descriptor. Which process it is of they know.
struct AnnouncedRegion {
  std::int32_t fd;
  std::uint32_t unused;
  SegmentIdentity file;
};
static_assert(sizeof(AnnouncedRegion) == 32);

/// What a rank has added by Communicator::add_region(). Written by the rank alone; an entry never changes
/// once it is there. The release store of `count` publishes the entries before it and pairs with the peers'
/// acquire load.
struct alignas(64) RegionTable {
  std::atomic<std::uint32_t> count;
  AnnouncedRegion regions[kMaxRegions];
};

/// How far the two ends of a channel are. Each word has one writer.
struct ChannelCounters {
  // By the sender. A store publishes what was written to the ring or the slot before it, and pairs with the
  // receiver's load.
  alignas(64) std::atomic<std::uint64_t> written;  // bytes of the ring
  std::atomic<std::uint64_t> posted;               // blocks
  std::atomic<std::uint32_t> starved;              // the sender waits for room
  // By the receiver. A store says that its reads of what it gives back are over, and pairs with the sender's
  // load.
  alignas(64) std::atomic<std::uint64_t> read;  // bytes of the ring
  std::atomic<std::uint64_t> released;          // blocks
};
static_assert(sizeof(ChannelCounters) == 128);

enum class PacketKind : std::uint32_t {
  eager,   // a message, its bytes behind the packet
  mapped,  // a message that lies in a region of the sender, where the receiver reads it; answered by `done`,
           // or by `want` if it cannot map a region that was added
  staged,  // a message that comes through the slots once it is asked for by `want`
  own,     // a message of the rank to itself, read where it lies; answered by `done`
  want,
  done,
};

/// One entry of a channel's ring.
struct Packet {
  PacketKind kind;
  std::int32_t tag;
  std::uint64_t id;
  std::uint64_t bytes;   // of the message
  std::uint64_t offset;  // mapped: in the region
  std::uint32_t region;  // those given at the group's making, then the added ones
  std::uint32_t unused;
  Signature signature;
};
static_assert(sizeof(Packet) == 64);

/// One direction between two ranks.
struct MessageChannel {
  static constexpr std::size_t kEagerBytes = 4096;  // longer messages are not copied into the ring
  static constexpr std::size_t kRingBytes = 64 * 1024;
  // Enough of them for a slot to be out of the receiver's nearest cache when it is written again, which is
  // twice as fast then.
  static constexpr std::uint64_t kSlots = 8;
  static constexpr std::size_t kSlotBytes = 128 * 1024;
  static constexpr std::size_t kBodyBytes = kRingBytes + kSlots * kSlotBytes;

  ChannelCounters* counters = nullptr;
  std::byte* body = nullptr;

  std::byte* slot(std::uint64_t block) const { return body + kRingBytes + block % kSlots * kSlotBytes; }
};

/// Addresses in the part of the control segment that is for messages: lines, region tables, counters, then
/// the bodies, which are sparse: a page costs memory from its first use.
class MessageLayout {
 public:
  MessageLayout(std::byte* base, std::size_t ranks) : base_(base), ranks_(ranks) {}

  std::size_t bytes() const { return bodies_offset() + ranks_ * ranks_ * MessageChannel::kBodyBytes; }
  MessageLine& line(std::size_t rank) const { return reinterpret_cast<MessageLine*>(base_)[rank]; }
  RegionTable& regions(std::size_t rank) const {
    return reinterpret_cast<RegionTable*>(base_ + tables_offset())[rank];
  }
  MessageChannel channel(std::size_t from, std::size_t to) const {
    const std::size_t number = to * ranks_ + from;  // what one rank looks at lies together
    return {reinterpret_cast<ChannelCounters*>(base_ + counters_offset()) + number,
            base_ + bodies_offset() + number * MessageChannel::kBodyBytes};
  }

 private:
  static constexpr std::size_t kPage = 4096;
  static constexpr std::size_t pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }
  std::size_t tables_offset() const { return pages(ranks_ * sizeof(MessageLine)); }
  std::size_t counters_offset() const { return tables_offset() + pages(ranks_ * sizeof(RegionTable)); }
  std::size_t bodies_offset() const {
    return counters_offset() + pages(ranks_ * ranks_ * sizeof(ChannelCounters));
  }

  std::byte* base_;
  std::size_t ranks_;
};

/// The sender's end. Packets become visible together, by publish().
class ChannelWriter {
 public:
  explicit ChannelWriter(MessageChannel channel) : channel_(channel) {}

  /// False if there is no room. `payload` is at most kEagerBytes long.
  bool push(const Packet& packet, std::span<const std::byte> payload = {});
  /// True if there was anything to publish.
  bool publish();
  bool half_full();

  /// Where the next block goes, or null while all slots are in use.
  std::byte* free_slot();
  void post();

  /// Whether the receiver is to wake us when it makes room. True if that is news to it.
  bool starve(bool starved);

 private:
  void write(std::uint64_t position, const void* bytes, std::size_t size);

  MessageChannel channel_;
  std::uint64_t written_ = 0, published_ = 0, posted_ = 0;
  std::uint64_t read_ = 0;  // by the receiver, as of our last look
  bool starved_ = false;
};

/// The receiver's end.
class ChannelReader {
 public:
  explicit ChannelReader(MessageChannel channel) : channel_(channel) {}

  struct Entry {
    Packet packet;
    std::span<const std::byte> payload;  // valid until the next call
  };
  /// The next packet. Throws Error(protocol) if the ring cannot hold what is in it.
  std::optional<Entry> next();
  /// Gives back what next() has returned. True if anything was given back.
  bool release();

  /// The next block, or null while there is none.
  const std::byte* block() const;
  void release_block();
  /// Whether the sender waits for what was released.
  bool sender_starved() const { return channel_.counters->starved.load() != 0; }

 private:
  void read(std::uint64_t position, void* bytes, std::size_t size) const;

  MessageChannel channel_;
  std::uint64_t read_ = 0, given_back_ = 0, released_ = 0;
  alignas(64) std::byte scratch_[MessageChannel::kEagerBytes];
};

}  // namespace vccl
