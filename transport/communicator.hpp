// A group of ranks that move bytes: what an algorithm sees of the transport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/deadline.hpp"
#include "transport/error.hpp"
#include "transport/messages.hpp"
#include "transport/store.hpp"

namespace vccl {

/// What every rank must agree on for one operation. Compared field by field between ranks; the names of the
/// numbers belong to the floor above (CommunicatorConfig::describe).
struct Signature {
  std::uint8_t collective = 0;
  std::uint8_t dtype = 0;
  std::uint8_t op = 0;
  std::int32_t root = -1;
  std::uint64_t count = 0;
  std::uint64_t extra = 0;  // whatever else must be equal (a hash of split sizes, a factor's bits)

  bool operator==(const Signature&) const = default;
};

/// Memory that peers on this host may map: a card's arena. `base` shows the file from its first byte on.
struct Region {
  int fd = -1;
  std::byte* base = nullptr;
  std::size_t size = 0;
};

/// Of one rank in one communicator.
inline constexpr std::size_t kMaxRegions = 8;

struct CommunicatorConfig {
  std::string name;  // of the group, for messages: "default_pg", "mesh_dp"
  int rank = 0;
  int size = 1;
  std::vector<Region> regions;  // at most kMaxRegions; the same number on every rank is not required
  std::string (*describe)(const Signature&) = nullptr;  // "all_reduce(float32, 1024 elements, SUM)"
  Milliseconds timeout{600'000};                        // for putting the group together
  // Ranks with different ids count as ranks on different hosts; an equal id alone joins nothing. Empty:
  // VCCL_HOSTID.
  std::string host_id;
  std::string algorithms;  // Communicator::algorithm_choice(). Empty: VCCL_ALGO.
};

/// What a rank says and shows at the beginning of an operation.
struct Announcement {
  Signature signature;
  std::span<std::byte> window = {};  // what post() and take() address; may be empty
  // What the peers on this host may address through Peers, reading and writing. All ranks show, or none does.
  bool shows = false;
  std::uint32_t algorithm = 0;  // compared on one host: ranks might be told different things (VCCL_ALGO)
  std::span<std::byte> input = {}, output = {};
  std::uint64_t note = 0;  // a number for the peers, which nobody compares
  // Bytes that travel with the announcement, so that nobody has to wait for their being read. Their number is
  // the same on every rank and at most Peers::kPayloadBytes; the parts lie one after the other in them, and
  // may be shorter. Where nothing is shown, a payload takes the place of the window.
  std::size_t payload_bytes = 0;
  std::span<const std::byte> payload[2] = {};
};

/// Every rank's memory at once, inside an operation, where all ranks share one host: for algorithms that are
/// no ring. Used by the operation's thread.
class Peers {
 public:
  static constexpr std::size_t kPayloadBytes = 64 * 1024;
  static constexpr std::size_t kScratchBytes = 1024 * 1024;
  /// Phases of an operation are counted from 1; this is the last one of every operation that shows memory.
  static constexpr std::uint32_t kDone = (1u << 20) - 1;

  virtual ~Peers() = default;
  /// Whether every rank handed over memory when the group was made; nothing can be mapped otherwise. The same
  /// on every rank, at any time.
  virtual bool mappable() const = 0;
  /// Whether all memory that was shown is mapped on this host. The same on every rank. Throws Error(protocol)
  /// for a window outside of its rank's regions.
  virtual bool all_mapped() = 0;
  /// A rank's buffers, where all_mapped(); as long as it announced. What it wrote before the operation is
  /// there.
  virtual std::span<std::byte> input(int rank) = 0;
  virtual std::span<std::byte> output(int rank) = 0;
  virtual std::uint64_t note(int rank) = 0;
  /// The payload that a rank announced. Stays until this rank begins its next operation.
  virtual const std::byte* payload(int rank) = 0;
  /// kScratchBytes of shared memory of each rank, its slots: while nothing is under way on the ring.
  virtual std::byte* scratch(int rank) = 0;

  /// This rank has come to `phase`: what it wrote before is there for whoever awaits that. Phases ascend.
  /// With kDone it touches the peers' memory no more.
  virtual void arrive(std::uint32_t phase) = 0;
  virtual void await(int rank, std::uint32_t phase) = 0;
  virtual void await_all(std::uint32_t phase) = 0;

  /// Whether ranks outnumber the cores that they, or some of them, may run on. The same on every rank.
  virtual bool crowded() const = 0;
  /// An operation's work in shares, one a rank, which any rank may do: claims one that nobody has begun, this
  /// rank's own if it is free. Returns the rank whose share it is, or -1 when none is left.
  virtual int claim_share() = 0;
  /// The share that this rank has claimed is done: what it wrote is there for whoever awaits the shares.
  virtual void deliver_share() = 0;
  /// When none is left to claim: waits until all shares are done. Nobody touches this rank's memory any more
  /// then: a rank that comes late finds nothing to claim. A rank that holds no share is not waited for.
  virtual void await_shares() = 0;
};

/// Blocks that go to the right neighbour of the ring. Used by one thread at a time.
///
/// Both ends know from the algorithm which blocks come in which order and how long they are; nothing about a
/// block's length or place is taken from the peer. At most kSlots blocks may be posted ahead of the
/// neighbour's releases before post() or reserve() waits, so an algorithm takes turns: post one, take one.
class Outbox {
 public:
  virtual ~Outbox() = default;
  /// Sends `bytes` bytes of the operation's window at `offset`. The bytes stay as they are until drain() (or
  /// until the algorithm knows by other means that the neighbour has them). bytes <= kBlockBytes.
  virtual void post(std::size_t offset, std::size_t bytes) = 0;
  /// A slot of kBlockBytes to write a block into that is not part of the window (64-byte aligned)...
  virtual std::byte* reserve() = 0;
  /// ...and its sending.
  virtual void commit(std::size_t bytes) = 0;
  /// Waits until the neighbour has everything: the window may be overwritten.
  virtual void drain() = 0;
};

/// Blocks that come from the left neighbour. Used by one thread at a time.
class Inbox {
 public:
  virtual ~Inbox() = default;
  /// The next block, which the neighbour sent with post(offset, bytes): `offset` is in its window. Valid
  /// until release(). Any alignment. Reads the neighbour's memory directly where that is mapped.
  virtual const std::byte* take(std::size_t offset, std::size_t bytes) = 0;
  /// The next block, which the neighbour sent with commit(bytes).
  virtual const std::byte* take_committed(std::size_t bytes) = 0;
  /// The block last taken has been read.
  virtual void release() = 0;
};

/// The ranks of a group, bound together: shared memory and flag lines inside a host, ZeroMQ between hosts.
/// Operations run one at a time, from any thread; abort(), failed() and failure() may be called at any time
/// from any thread. After a failure every operation on every rank throws the same Error; the group has to be
/// made anew.
class Communicator {
 public:
  /// Largest block, and how many may be under way.
  static constexpr std::size_t kBlockBytes = 256 * 1024;
  static constexpr int kSlots = 4;

  /// Puts the group together over the store; every rank calls it. Proves which ranks share a host by mapping
  /// and reading back a nonce, hands over regions and control memory, connects links between hosts.
  /// Throws Error(bootstrap | timeout | protocol | system) within config.timeout, and leaves nothing behind.
  static std::unique_ptr<Communicator> create(Store& store, const CommunicatorConfig& config);
  /// Tells the peers that we left; frees everything. Never blocks for long.
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const std::string& name() const = 0;

  /// The ring goes through the ranks of one host before it goes on to the next. `ring_rank(ring_position())`
  /// == rank(); the right neighbour of position p is p + 1, cyclically.
  virtual int ring_position() const = 0;
  virtual int ring_rank(int position) const = 0;
  /// Number of hosts, and the hosts' number of each rank.
  virtual int host_count() const = 0;
  virtual int host_of(int rank) const = 0;

  virtual Outbox& right() = 0;
  virtual Inbox& left() = 0;
  /// Null where the ranks are on several hosts.
  virtual Peers* peers() { return nullptr; }
  /// Which algorithms were asked for when the group was put together, in the words of VCCL_ALGO.
  virtual const std::string& algorithm_choice() const;

  /// Point-to-point, beside the operations. Its thread and links are made at first use.
  virtual Messages& messages() { throw Error(ErrorCode::unsupported, "this communicator has no messages"); }
  /// Memory that was not there yet when the group was made: from now on peers on this host read messages that
  /// lie in it in place, where the system lets them open the descriptor. For messages alone: windows of
  /// operations there are staged. At any time, from any thread; does nothing for a base that is a region
  /// already, nor beyond kMaxRegions in all: messages from there are staged. The memory stays mapped and the
  /// descriptor open for as long as the communicator lives, and those of other ranks in this process. Throws
  /// Error(protocol) for a file that may shrink, Error(invalid) for a region longer than its file,
  /// Error(system).
  virtual void add_region(const Region& region) { (void)region; }

  /// Marks the group as failed, here and at every peer that can be reached; everybody who waits, throws. The
  /// first failure wins. Never blocks, never throws.
  virtual void fail(ErrorCode code, const std::string& what) noexcept = 0;
  /// fail(aborted, ...).
  virtual void abort(const std::string& reason) noexcept = 0;
  virtual bool failed() const noexcept = 0;
  /// Throws the failure if there is one. Cheap.
  virtual void check() = 0;
  /// Number of operations begun.
  virtual std::uint64_t sequence() const noexcept = 0;

 private:
  friend class Operation;
  virtual void begin(const Announcement& announcement, const Deadline& deadline) = 0;
  virtual void finish() = 0;
  /// The operation ends in the middle: fails the group, and returns when nothing reads the window any more,
  /// and nobody writes to what we showed.
  virtual void cut_short() noexcept = 0;
};

/// One collective call on a communicator. Making it announces our signature and window, waits for the peers
/// on this host to arrive at the same operation, and compares; throws Error(mismatch) naming both sides, on
/// every rank.
class Operation {
 public:
  /// `window` is what post() and take() address; it may be empty. Where it lies in one of the communicator's
  /// regions, peers read it in place; elsewhere blocks are staged through shared slots.
  Operation(Communicator& communicator, const Signature& signature, std::span<std::byte> window,
            const Deadline& deadline)
      : Operation(communicator, Announcement{.signature = signature, .window = window}, deadline) {}
  Operation(Communicator& communicator, const Announcement& announcement, const Deadline& deadline);
  /// Without finish(), the operation was cut short: fails the communicator, so that no peer waits for us.
  ~Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  /// Drains the outbox and ends the operation.
  void finish();

 private:
  Communicator& communicator_;
  bool finished_ = false;
};

}  // namespace vccl
