// The layout of messages between ranks of one host in the host's control memory. It has a channel for each
// ordered pair of ranks. For each rank it has the line on which its message thread sleeps, and the regions
// that the rank has added.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "transport/communicator.hpp"
#include "transport/system/shared_memory.hpp"

namespace vccl {

/// The words on which the message thread of a rank sleeps. All accesses are sequentially consistent. The
/// sleeper announces that it sleeps and then reads the channels once more. The waker writes to a channel and
/// then reads whether the thread sleeps. So at least one of them sees the other (shared/flags.hpp has the
/// whole argument).
struct alignas(64) MessageLine {
  enum Sleep : std::uint32_t {
    awake,    // the thread is awake, or there is none
    idle,     // nothing is under way: only a channel that fills up is worth a wake-up
    dozing,   // as idle, but the thread also looks by itself now and then, so the rank's own calls need not
              // wake it
    waiting,  // every event is worth a wake-up
  };
  std::atomic<std::uint32_t> wakeups;  // futex word
  std::atomic<std::uint32_t> sleep;
};

/// Wakes the rank's thread if it is waiting, and with `idle_too` also if it is idle or dozing.
void wake_messages(MessageLine& line, bool idle_too) noexcept;
/// Sleeps for at most `time`, unless there was a wake-up since `seen` was read.
void sleep_for_messages(MessageLine& line, std::uint32_t seen, std::chrono::nanoseconds time) noexcept;

/// A region as its rank announces it to peers who may open the descriptor. They know the rank's process
/// already.
struct AnnouncedRegion {
  std::int32_t fd;
  std::uint32_t unused;
  FileIdentity file;
};
static_assert(sizeof(AnnouncedRegion) == 32);

/// What a rank has added by Communicator::add_region(). Only the rank itself writes it. An entry never
/// changes once it is published. The release store of `count` publishes the entries before it, and pairs with
/// the peers' acquire load.
struct alignas(64) RegionTable {
  std::atomic<std::uint32_t> count;
  AnnouncedRegion regions[kMaxRegions];
};

/// How far the two ends of a channel are. Each word has one writer.
struct ChannelCounters {
  // The sender writes these. A store of `written` or `posted` publishes what was written to the ring or the
  // slot before it, and pairs with the receiver's load.
  alignas(64) std::atomic<std::uint64_t> written;  // bytes in the ring
  std::atomic<std::uint64_t> posted;               // blocks
  std::atomic<std::uint32_t> starved;              // whether the sender waits for room
  // The receiver writes these. A store says that the receiver has finished reading what it gives back, and
  // pairs with the sender's load.
  alignas(64) std::atomic<std::uint64_t> read;  // bytes in the ring
  std::atomic<std::uint64_t> released;          // blocks
  // The receiver writes these too. They count from the beginning what it does not keep any more
  // (message_port.hpp).
  std::atomic<std::uint64_t> freed_bytes;   // bytes of eager messages
  std::atomic<std::uint64_t> freed_offers;  // messages of any kind
  // The receiver writes these as well: how many of its receives with a MessageTag of no number have begun,
  // alone and in batches (begun_receives.hpp).
  std::atomic<std::uint64_t> begun[2];
};
static_assert(sizeof(ChannelCounters) == 128);

enum class PacketKind : std::uint32_t {
  eager,   // a message whose bytes are behind the packet
  mapped,  // a message in a region of the sender, where the receiver reads it; answered by `done`, or by
           // `want` if the receiver cannot map a region that was added
  staged,  // a message that comes through the slots once the receiver has asked for it by `want`
  own,     // a message of the rank to itself, read where it lies; answered by `done`
  want,
  done,
};

/// One entry of a channel's ring.
struct Packet {
  PacketKind kind;
  std::int32_t tag;
  std::uint64_t id;
  std::uint64_t bytes;     // the length of the message
  std::uint64_t offset;    // if mapped: the offset in the region, in bytes
  std::uint32_t region;    // an index: the regions given when the communicator was made, then the added ones
  std::uint32_t of_cards;  // 1 if the tag is one of cards, and else 0
  Signature signature;
};
static_assert(sizeof(Packet) == 64);

/// One direction between two ranks.
struct MessageChannel {
  static constexpr std::size_t kEagerBytes = 4096;  // longer messages are not copied into the ring
  // How many bytes of eager messages a receiver keeps for receives that have not been called. Further
  // messages are offered as long ones are.
  static constexpr std::uint64_t kKeptBytes = std::uint64_t{16} << 20;
  static constexpr std::size_t kRingBytes = 64 * 1024;
  // There are enough slots that a slot has left the receiver's nearest cache when it is written again.
  // Writing it is then twice as fast.
  static constexpr std::uint64_t kSlots = 8;
  static constexpr std::size_t kSlotBytes = 128 * 1024;
  static constexpr std::size_t kBodyBytes = kRingBytes + kSlots * kSlotBytes;

  ChannelCounters* counters = nullptr;
  std::byte* body = nullptr;

  std::byte* slot(std::uint64_t block) const { return body + kRingBytes + block % kSlots * kSlotBytes; }
};

/// Computes addresses in the part of the control memory that is for messages: lines, region tables,
/// counters, and then the bodies. The bodies are sparse: a page uses memory only after its first use.
class MessageLayout {
 public:
  MessageLayout(std::byte* base, std::size_t ranks) : base_(base), ranks_(ranks) {}

  std::size_t bytes() const { return bodies_offset() + ranks_ * ranks_ * MessageChannel::kBodyBytes; }
  MessageLine& line(std::size_t rank) const { return reinterpret_cast<MessageLine*>(base_)[rank]; }
  RegionTable& regions(std::size_t rank) const {
    return reinterpret_cast<RegionTable*>(base_ + tables_offset())[rank];
  }
  MessageChannel channel(std::size_t from, std::size_t to) const {
    const std::size_t number = to * ranks_ + from;  // what one rank polls lies together
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

/// The sender's end. Packets become visible together by publish().
class ChannelWriter {
 public:
  explicit ChannelWriter(MessageChannel channel) : channel_(channel) {}

  /// Returns whether the receiver keeps one more message.
  bool may_offer() const { return offers_ - channel_.counters->freed_offers.load() < kMostUnreceived; }
  bool may_be_eager(std::size_t bytes) const {
    return eager_bytes_ + bytes - channel_.counters->freed_bytes.load() <= MessageChannel::kKeptBytes;
  }
  /// Writes a packet. Returns false if there is no room in the ring. `payload` is at most kEagerBytes long.
  bool push(const Packet& packet, std::span<const std::byte> payload = {});
  /// Makes all pushed packets visible. Returns whether there were any.
  bool publish();
  bool half_full();

  /// Returns the slot for the next block, or null while all slots are in use.
  std::byte* free_slot();
  void post();

  /// Says whether the receiver must wake this rank when it makes room. Returns whether that is a change.
  bool starve(bool starved);

 private:
  void write(std::uint64_t position, const void* bytes, std::size_t size);

  MessageChannel channel_;
  std::uint64_t written_ = 0, published_ = 0, posted_ = 0;
  std::uint64_t offers_ = 0, eager_bytes_ = 0;  // counts what was pushed
  std::uint64_t read_ = 0;                      // what the receiver had read when this was last loaded
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
  /// Returns the next packet. Throws Error(protocol) if the ring cannot hold what the packet claims to have.
  std::optional<Entry> next();
  /// Gives back what next() has returned. Returns whether there was anything to give back.
  bool release();

  /// Call this when a message is not kept any more.
  void free(std::size_t eager_bytes) {
    freed_offers_ = std::max(freed_offers_, ++matched_);
    freed_bytes_ += eager_bytes;
  }
  /// Returns whether all offers that the sender may make have come. The sender then waits before it makes
  /// another.
  bool is_full() const { return offers_ - freed_offers_ >= kMostUnreceived; }
  /// Lets the sender make as many offers again, as if the offers that are kept did not count.
  void allow_more() { freed_offers_ = offers_; }
  /// Publishes what was freed to the sender. Returns whether there was anything new.
  bool tell_freed();

  /// Returns the next block, or null while there is none.
  const std::byte* block() const;
  void release_block();
  /// Returns whether the sender waits for what was released.
  bool sender_starved() const { return channel_.counters->starved.load() != 0; }

 private:
  void read(std::uint64_t position, void* bytes, std::size_t size) const;

  MessageChannel channel_;
  std::uint64_t read_ = 0, given_back_ = 0, released_ = 0;
  std::uint64_t offers_ = 0;  // counts the offers that have come
  std::uint64_t matched_ = 0, freed_offers_ = 0, freed_bytes_ = 0;
  std::uint64_t told_offers_ = 0, told_bytes_ = 0;
  alignas(64) std::byte scratch_[MessageChannel::kEagerBytes];
};

}  // namespace vccl
