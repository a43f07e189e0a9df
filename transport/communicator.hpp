// The communicator: the part of the transport that an algorithm sees.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/deadline.hpp"
#include "transport/earlier.hpp"
#include "transport/error.hpp"
#include "transport/messages.hpp"
#include "transport/questions.hpp"
#include "transport/rank_names.hpp"
#include "transport/store.hpp"

namespace vccl {

/// The values on which all ranks must agree for one operation. Ranks compare each field. The transport does
/// not know what the numbers mean: CommunicatorConfig::describe turns them into text.
struct Signature {
  std::uint8_t collective = 0;
  std::uint8_t dtype = 0;
  std::uint8_t op = 0;
  std::uint8_t checks = 0;  // what the program asks to check, as bits (VCCL_CHECK)
  std::int32_t root = -1;
  std::uint64_t count = 0;
  std::uint64_t extra = 0;  // anything else that must be equal (a hash of split sizes, a factor's bits)

  bool operator==(const Signature&) const = default;
};

/// Why a rank refuses an operation, in numbers that mean something to the caller only.
struct Refusal {
  std::uint64_t facts[4] = {};
};

/// Memory that peers on this host may map: a card's arena. `base` is the address of the file's first byte.
struct Region {
  int fd = -1;
  std::byte* base = nullptr;
  std::size_t size = 0;
  // Keeps the memory mapped and the descriptor open for as long as anybody uses them. Null if they last
  // anyway.
  std::shared_ptr<const void> owner = nullptr;
};

/// The largest number of regions that one rank may have in one communicator.
inline constexpr std::size_t kMaxRegions = 8;

struct CommunicatorConfig {
  std::string name;    // the group's name in messages: "default_pg", "mesh_dp"
  std::string device;  // the device's name in messages: "cpu", "vdev:1"; may be empty
  int rank = 0;
  int size = 1;
  // The numbers in the job of the group's ranks. If it is empty, the numbers in the group count.
  std::vector<std::uint64_t> global_ranks;
  // The call that makes the group: "new_group". All ranks must have made it with the same ranks, or the
  // meeting fails.
  std::string call = "init_process_group";
  // The store in which ranks of the same job leave errors for ranks that wait in other meetings. May be null.
  std::shared_ptr<Store> notices;
  // How to connect to that store once more, to tell other hosts what this process waits for. If it is empty,
  // ranks on several hosts that wait for each other do so until the timeout.
  ConnectStore connect_store;
  std::vector<Region> regions;  // at most kMaxRegions; ranks may have different numbers of regions
  // Returns "all_reduce(float32, 1024 elements, SUM)".
  std::string (*describe)(const Signature&, const RankNames&) = nullptr;
  // Returns "element 17 of 300 of the input is NaN".
  std::string (*describe_refusal)(const Refusal&) = nullptr;
  Milliseconds timeout{600'000};  // how long the making of the communicator may take
  // Ranks with different ids count as ranks on different hosts. An equal id alone does not make ranks share a
  // host. If this is empty, VCCL_HOSTID applies.
  std::string host_id;
  std::string algorithms;  // see Communicator::algorithm_choice(); if empty, VCCL_ALGO applies
  // Called first. Does everything else that a rank needs before it joins, such as checking settings or
  // filling in the rest of this struct. If this throws, the rank does not join, and all ranks raise an error
  // with its text.
  std::function<void(CommunicatorConfig&)> prepare;
  std::shared_ptr<Earlier> earlier;  // what this process already knows of the ranks; may be null
  // Answers questions of ranks on other hosts, and of processes of this user. If it is empty, this rank
  // answers nobody.
  AnswerQuestion answer;

  /// Throw Error(invalid) for a rank outside of the group, and for more than kMaxRegions regions.
  void check_rank() const;
  void check_regions() const;
  RankNames names() const { return {name, global_ranks}; }
};

/// Says over which links between hosts an operation goes. The ranks at their ends compare what they
/// announced.
enum class Route : std::uint8_t {
  ring,        // the ring of all ranks
  host_rings,  // HostRing::right() and left()
  leaps,       // HostRing::right() and left() of each leap: every leader sends something on each
  some_leaps,  // the same, but not every leader sends something on each
};

/// Without which ranks on other hosts an operation cannot end on this rank, whatever the algorithm.
enum class Needs : std::uint8_t { unknown, root, all };

/// What a rank publishes at the beginning of an operation.
struct Announcement {
  Signature signature;
  // If it is there, this rank refuses the operation: all ranks throw Error(invalid), which says of each rank
  // of this host why it refuses.
  std::optional<Refusal> refusal = {};
  std::span<std::byte> window = {};  // the memory that post() and take() refer to; may be empty
  // Whether the ranks of this host may read and write `input` and `output` through Peers. The value must be
  // the same on all of them.
  bool shows = false;
  Route route = Route::ring;  // must be the same on all ranks of the host
  Needs needs = Needs::unknown;
  std::uint32_t algorithm = 0;  // compared, as VCCL_ALGO might differ between ranks
  // A hash of what the rank has called in other groups before, which is compared unless it is 0.
  std::uint32_t order = 0;
  std::span<std::byte> input = {}, output = {};
  std::uint64_t factor = 0;  // a number for the peers, which is not compared
  // Bytes that travel with the announcement to the ranks of this host, so that the sender does not wait until
  // they have read them. Each of them must give the same payload_bytes, at most Peers::kPayloadBytes. The two
  // spans are placed one after the other and may be shorter together. If `shows` is false, a short payload
  // takes the place of the windows in the announcement.
  std::size_t payload_bytes = 0;
  std::span<const std::byte> payload[2] = {};
};

/// Gives access to the memory of several ranks at once during an operation: of all ranks of the group that
/// are on this rank's host, and of no others. The algorithms that do not use the ring use it. Only the
/// operation's thread may use it.
///
/// The members name a peer by its index, which is its place in ranks(). This rank is one of the peers. Where
/// all ranks of the group are peers (Communicator::all_peers()), a peer's index is its rank.
class Peers {
 public:
  static constexpr std::size_t kPayloadBytes = 64 * 1024;
  static constexpr std::size_t kScratchBytes = 1024 * 1024;
  /// The last phase of every operation that shows memory. The phases of an operation are counted from 1.
  static constexpr std::uint32_t kDone = (1u << 20) - 3;
  /// Takes the place of all other phases in an operation whose memory this rank will not touch.
  static constexpr std::uint32_t kDeclined = kDone + 1;

  virtual ~Peers() = default;
  /// Returns the ranks of the peers, in ascending order. The result is the same on every peer.
  virtual std::span<const int> ranks() const = 0;
  /// Returns this rank's index.
  virtual int own() const = 0;

  /// Returns whether every peer handed over memory when the communicator was made. Otherwise nothing can be
  /// mapped. The result is the same on every peer at any time.
  virtual bool mappable() const = 0;
  /// Returns whether all memory that the peers have shown is mapped. The result is the same on every peer.
  /// Throws Error(protocol) for a window that lies outside of its rank's regions.
  virtual bool all_mapped() = 0;
  /// Returns the input, or output, buffer of `peer` with the length that the peer announced. Call this only
  /// after all_mapped() has returned true. What the peer wrote before the operation is visible.
  virtual std::span<std::byte> input(int peer) = 0;
  virtual std::span<std::byte> output(int peer) = 0;
  virtual std::uint64_t factor(int peer) = 0;
  /// Returns the payload that `peer` announced. The bytes stay valid until this rank begins its next
  /// operation.
  virtual const std::byte* payload(int peer) = 0;
  /// Returns the slots of `peer`, which are kScratchBytes of shared memory. Use them only while no block is
  /// under way on the ring.
  virtual std::byte* scratch(int peer) = 0;

  /// Announces that this rank has come to `phase`. Every peer that awaits the phase then sees what this rank
  /// wrote before. A rank's phases must ascend. After kDone this rank does not touch the peers' memory any
  /// more.
  virtual void arrive(std::uint32_t phase) = 0;
  virtual void await(int peer, std::uint32_t phase) = 0;
  virtual void await_all(std::uint32_t phase) = 0;
  /// Returns whether `peer` has arrived at kDeclined.
  virtual bool declined(int peer) = 0;

  /// Returns whether the peers outnumber the cores that they, or some of them, may run on. The result is the
  /// same on every peer.
  virtual bool oversubscribed() const = 0;
  /// Claims a work item that no peer has begun: this rank's own item if it is free. An operation has one work
  /// item for each peer, and any peer may do it. Returns the index of the peer whose item it is, or -1 when
  /// no item is left.
  virtual int claim_work_item() = 0;
  /// Call this when the claimed work item is done. Every peer that awaits the work items then sees what this
  /// rank wrote.
  virtual void deliver_work_item() = 0;
  /// Call this when no work item is left to claim. Blocks until all items are done, but does not wait for a
  /// peer that holds no item. Afterwards no peer touches this rank's memory, because a peer that comes late
  /// finds no item to claim.
  virtual void await_work_items() = 0;
};

/// Sends blocks to the right neighbour of the ring. Only one thread may use it at a time.
///
/// Both ends know from the algorithm which blocks come in which order and how long they are. Nothing about a
/// block's length or place is taken from the peer. At most kSlots blocks may be posted ahead of the
/// neighbour's releases. Then post() and reserve() block, so an algorithm must alternate: post one block,
/// take one block.
class Outbox {
 public:
  virtual ~Outbox() = default;
  /// Sends `bytes` bytes at `offset` in the operation's window. The bytes must not change until drain() has
  /// returned, or until the algorithm knows by other means that the neighbour has read them. `bytes` is at
  /// most kBlockBytes.
  virtual void post(std::size_t offset, std::size_t bytes) = 0;
  /// Returns a slot of kBlockBytes, aligned to 64 bytes, for a block that is not part of the window. Blocks
  /// until a slot is free.
  virtual std::byte* reserve() = 0;
  /// Sends the block that was written to the slot from reserve().
  virtual void commit(std::size_t bytes) = 0;
  /// Blocks until nobody reads the window any more: it may be overwritten afterwards. The neighbour may not
  /// have read the last short blocks yet, which were copied.
  virtual void drain() = 0;
};

/// Receives blocks from the left neighbour of the ring. Only one thread may use it at a time.
class Inbox {
 public:
  virtual ~Inbox() = default;
  /// Blocks until the next block has come, and returns it. The neighbour sent it with post(offset, bytes), so
  /// `offset` refers to the neighbour's window. The result is valid until release() and may have any
  /// alignment. It points into the neighbour's memory where that is mapped.
  virtual const std::byte* take(std::size_t offset, std::size_t bytes) = 0;
  /// Blocks until the next block has come, and returns it. The neighbour sent it with commit(bytes).
  virtual const std::byte* take_committed(std::size_t bytes) = 0;
  /// Call this when the block last taken has been read.
  virtual void release() = 0;
};

/// The rings across the hosts. A rank's place is its index among the ranks of its host. The ranks with the
/// same place on all hosts are a ring of their own, and all rings can be used at once. There are as many
/// rings as the smallest host has ranks. The ranks of larger hosts that are on no ring have a HostRing as
/// well, but only the members that say so work there. Only the operation's thread may use it.
///
/// The first rank of each host is its leader. Leaders have further links, the leaps: leap k goes 2^k hosts to
/// the right. By leaps() steps, one on each leap, data get from every host to every other host.
class HostRing {
 public:
  virtual ~HostRing() = default;
  /// Returns the number of hosts, and the position of this rank's host on the rings. They work for every
  /// rank.
  virtual int size() const = 0;
  virtual int position() const = 0;
  /// Returns the ranks of the host at a position, in ascending order. Works for every rank.
  virtual std::span<const int> ranks(int position) const = 0;
  /// Returns the number of rings. Works for every rank.
  virtual int rings() const = 0;
  /// Returns whether every rank of the group handed over memory when the communicator was made. Works for
  /// every rank.
  virtual bool mappable() const = 0;

  virtual Outbox& right() = 0;
  virtual Inbox& left() = 0;
  /// Sends a block like Outbox::post() does, from any memory that a rank of this host shows.
  virtual void post(const std::byte* data, std::size_t bytes) = 0;
  /// Returns how many leaps there are: log2(size()), rounded up. Works for every rank.
  virtual int leaps() const = 0;
  /// Return the links to the host 2^leap positions further on, and to the host as far back. Leap 0 is the
  /// ring. Only leaders may call them.
  virtual Outbox& right(int leap) = 0;
  virtual Inbox& left(int leap) = 0;
  /// Returns whether the leaders of all hosts say yes. Only leaders may call this, and all must. Blocks until
  /// that is known.
  virtual bool all(bool own) = 0;
};

/// Binds the ranks of a group on one device: with shared memory and flags inside a host, and with ZeroMQ
/// between hosts. Operations run one at a time, from any thread. fail(), abort() and failed() may be called
/// at any time from any thread. After a failure every operation on every rank throws the same Error, and the
/// communicator has to be made anew.
class Communicator {
 public:
  /// The largest size of a block, and how many blocks may be under way.
  static constexpr std::size_t kBlockBytes = 256 * 1024;
  static constexpr int kSlots = 4;

  /// Makes the communicator over the store. Every rank must call this. Proves which ranks share a host by
  /// mapping memory and reading a nonce in it, hands over regions and control memory, and connects the links
  /// between hosts. Throws Error(bootstrap | timeout | protocol | system | peer_dead | peer_left) within
  /// config.timeout, and leaves nothing behind. If one rank cannot join, all ranks throw within a second,
  /// with that rank's number and its error text. An error that only that rank can be blamed for
  /// (Error(invalid | unsupported)) is an Error(bootstrap) on the other ranks.
  static std::unique_ptr<Communicator> create(Store& store, const CommunicatorConfig& config);
  /// Announces to the peers that this rank leaves, and frees everything. Does not block for long.
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const std::string& name() const = 0;
  /// Returns the names that texts give the ranks of the group.
  virtual const RankNames& names() const = 0;
  /// Returns the name that texts give this rank: see RankNames::rank().
  std::string own_text() const { return names().rank(rank()); }
  /// Returns the same with the group: see RankNames::of_group().
  std::string own_text_in_group() const { return names().of_group(rank()); }
  /// Returns a random text that the ranks of this communicator have in common, and no other communicator has.
  virtual const std::string& id() const = 0;

  /// Returns this rank's position on the ring. The ring visits all ranks of one host before it goes on to the
  /// next host. `ring_rank(ring_position())` == rank(). The right neighbour of position p is p + 1,
  /// cyclically.
  virtual int ring_position() const = 0;
  virtual int ring_rank(int position) const = 0;
  /// The number of hosts, and the number of the host that `rank` is on.
  virtual int host_count() const = 0;
  virtual int host_of(int rank) const = 0;
  /// Returns those ranks of other hosts that answer questions, and this rank, which is first, if it does.
  virtual std::vector<AnsweringRank> answering_ranks() const { return {}; }

  virtual Outbox& right() = 0;
  virtual Inbox& left() = 0;
  /// Returns access to the memory of the ranks of this host.
  virtual Peers& host_peers() {
    throw Error(ErrorCode::unsupported, "this communicator has no access to the memory of other ranks");
  }
  /// Returns the same if these are all ranks of the group, and null if the ranks are on several hosts.
  virtual Peers* all_peers() { return nullptr; }
  /// Returns the rings across the hosts, and null if there is one host.
  virtual HostRing* host_ring() { return nullptr; }
  /// Returns the choice of algorithms that was given when the communicator was made, in the syntax of
  /// VCCL_ALGO.
  virtual const std::string& algorithm_choice() const;

  /// Returns the point-to-point messages, which run beside the operations. Their connections and thread are
  /// made when they are first needed.
  virtual Messages& messages() { throw Error(ErrorCode::unsupported, "this communicator has no messages"); }
  /// Adds a region that did not exist when the communicator was made. From then on peers on this host read
  /// messages that lie in the region in place, if the system lets them open the descriptor. This serves
  /// messages only: an operation's window that lies there is staged. May be called at any time from any
  /// thread.
  /// Does nothing if `base` belongs to a region already, or if there are kMaxRegions regions: messages from
  /// there are staged. The memory must stay mapped and the descriptor open for as long as this communicator
  /// lives, and while communicators of other ranks in this process live, which the region's owner sees to.
  /// Throws Error(protocol) for a file
  /// that peers would not map (system/shared_memory.hpp), Error(invalid) for a region longer than its file,
  /// and Error(system).
  virtual void add_region(const Region& region) { (void)region; }

  /// Marks the communicator as failed, here and at every peer that can be reached. Every waiting thread then
  /// throws. Only the first failure counts. Never blocks and never throws.
  virtual void fail(ErrorCode code, const std::string& what) noexcept = 0;
  /// Calls fail() with ErrorCode::aborted.
  virtual void abort(const std::string& reason) noexcept = 0;
  virtual bool failed() const noexcept = 0;
  /// Throws the failure if there is one. This is cheap enough for hot paths.
  virtual void check() = 0;
  /// Receives what other hosts have sent since the last operation ended, and fails the communicator if a rank
  /// there has failed or died. Does nothing while an operation is under way, which looks itself. Call this
  /// every now and then while ranks of the group wait for each other elsewhere. May be called from any
  /// thread.
  virtual void look_around() noexcept {}
  /// Returns how `rank` has ended, if it is on this machine or a neighbour on a ring that crosses hosts.
  /// Returns nothing while the rank lives or if its end cannot be observed from here. May be called from any
  /// thread. Costs a system call.
  virtual std::optional<RankEnd> end_of(int rank) const noexcept {
    (void)rank;
    return std::nullopt;
  }
  /// Sets the reason for which this rank is going to leave, if the reason lies outside of this communicator.
  /// Peers that wait for this rank then report the reason. Only the first reason counts, and it is cut to 320
  /// bytes. May be called from any thread. Never throws.
  virtual void leave_because(const std::string& reason) noexcept { (void)reason; }
  /// Returns the reason given to leave_because(), or an empty string.
  virtual std::string leave_reason() const { return {}; }
  /// Announces to the ranks of this host that the calling thread is about to meet all ranks of the group in
  /// another way. The announcement lasts until the result is destroyed, which must happen before the
  /// communicator is. Every rank must announce the same meetings in the same order. `what` is for messages:
  /// "its first all_reduce on vdev:1 of group default_pg". If a rank waits for this rank in an operation that
  /// this rank begins only after the meeting, this communicator fails with a mismatch.
  virtual std::shared_ptr<void> announce_meeting(const std::string& what) {
    (void)what;
    return nullptr;
  }
  /// Returns the number of operations that have begun.
  virtual std::uint64_t sequence() const noexcept = 0;
  /// Returns whether an operation has begun and not yet ended.
  virtual bool busy() const noexcept = 0;

 private:
  friend class Operation;
  virtual void begin(const Announcement& announcement, const Deadline& deadline) = 0;
  virtual void finish() = 0;
  /// Call this when the operation ends before finish(). Fails the communicator, and blocks until libzmq reads
  /// no block of the window and no peer writes to the memory that this rank showed, or for a few seconds.
  virtual void cut_short() noexcept = 0;
};

/// One collective call on a communicator. The constructor publishes this rank's announcement, blocks until
/// the peers on this host have begun the same operation, and compares. Throws Error(mismatch), which names
/// both sides, on every rank.
class Operation {
 public:
  /// `window` is the memory that post() and take() refer to. It may be empty. Peers read it in place if it
  /// lies in one of the communicator's regions. Otherwise blocks are staged through slots.
  Operation(Communicator& communicator, const Signature& signature, std::span<std::byte> window,
            const Deadline& deadline)
      : Operation(communicator, Announcement{.signature = signature, .window = window}, deadline) {}
  Operation(Communicator& communicator, const Announcement& announcement, const Deadline& deadline);
  /// If finish() was not called, the operation was cut short: the destructor then fails the communicator, so
  /// that no peer waits for this rank.
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
