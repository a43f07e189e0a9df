// The memory that one symmetric allocation has on every rank of a group, as this process sees it, and the
// signals that the ranks give each other in it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "csrc_device/runtime/failure.hpp"
#include "csrc_device/runtime/process_sharing.hpp"
#include "transport/communicator.hpp"
#include "transport/rank_names.hpp"

namespace vccl::symmetric {

/// Stands before each signal pad, in the same block of card memory.
struct PadHeader {
  std::atomic<std::uint32_t> closed;    // 1 once the pad's owner has freed the memory
  std::atomic<std::uint32_t> sleepers;  // the threads, of any rank, that sleep on a word of this pad
};
/// The distance from a pad's header to the pad.
inline constexpr std::size_t kPadOffset = 512;
static_assert(sizeof(PadHeader) <= kPadOffset);

using Word = std::atomic<std::uint32_t>;
static_assert(sizeof(Word) == sizeof(std::uint32_t) && Word::is_always_lock_free);

/// Is the memory of one rank. It stays mapped, and its owner does not use it for anything else, as long as
/// this object lives.
struct Peer {
  std::unique_ptr<vdev::HeldRange> buffer, pad;

  PadHeader& header() const { return *reinterpret_cast<PadHeader*>(pad->data()); }
  std::byte* words() const { return pad->data() + kPadOffset; }
};

/// The group of a symmetric allocation. The communicator is not kept alive: a group that was destroyed must
/// leave its peers, whatever memory is left.
struct Members {
  std::weak_ptr<Communicator> communicator;
  std::shared_ptr<vdev::FailureOwner> failures;
  RankNames names;
  int rank = 0, size = 1;
};

/// Gives the signals. A signal is a word of the receiver's pad, which has one for each channel and sender:
/// the sender turns it from 0 to 1, and the receiver turns it back. Every wait ends with Error, which names
/// both ranks, at the deadline, when the group has failed or was left, and when the other rank has died or
/// freed its memory. Such an end fails the group. Thread-safe, but for two waits of the same rank on one
/// word.
class Connection {
 public:
  /// `text` names the memory in messages: "symmetric memory of 4096 bytes on vdev:0".
  Connection(Members members, std::vector<Peer> peers, std::size_t buffer_bytes, std::size_t pad_bytes,
             std::string text);
  /// Tells the peers that this rank has freed its memory.
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  const Members& members() const { return members_; }
  const std::vector<Peer>& peers() const { return peers_; }
  std::size_t buffer_bytes() const { return buffer_bytes_; }
  std::size_t pad_bytes() const { return pad_bytes_; }
  const std::string& text() const { return text_; }
  /// Returns how many channels the pad has room for.
  int channels() const;
  bool is_closed(int rank) const;
  /// Returns whether a signal of `from` has come that this rank has not taken yet.
  bool is_signalled(int from, int channel) const;

  void put_signal(int to, int channel, const Deadline& deadline);
  void wait_signal(int from, int channel, const Deadline& deadline);
  /// Returns when every rank has called it.
  void barrier(int channel, const Deadline& deadline);
  /// Returns when `ready` holds for a word, for which `peer` is responsible. `owner` is the rank whose pad
  /// has the word; -1 for a word elsewhere, which nobody wakes sleepers of. `what` completes "rank 0 waited
  /// for rank 1 ...".
  template <class Ready>
  void await(Word& word, Ready ready, int peer, int owner, const std::string& what,
             const Deadline& deadline) {
    const auto value = [&] { return word.load(std::memory_order_acquire); };
    if (ready(value())) return;
    wait(word, owner, ready, peer, what, deadline);
  }

  /// Fails the group because this rank does not run `what`, for which its peers may wait.
  Error fail_unrun(const std::string& what, const std::string& why) const;
  /// Fails the group because of what a rank did, and returns the error.
  Error fail(ErrorCode code, const std::string& what) const;

 private:
  using Ready = std::function<bool(std::uint32_t)>;

  Word& word(int owner, int channel, int sender) const;
  void wait(Word& word, int owner, const Ready& ready, int peer, const std::string& what,
            const Deadline& deadline);
  bool sleep_until(Word& word, int owner, const Ready& ready, Clock::time_point end);
  void check_peer(Word& word, const Ready& ready, int peer, const std::string& what) const;
  /// Says on stderr that this rank waits.
  void warn(std::chrono::nanoseconds waited, int peer, const std::string& what) const;
  void wake(int owner, Word& word) const;

  const Members members_;
  const std::vector<Peer> peers_;
  const std::size_t buffer_bytes_, pad_bytes_;
  const std::string text_;
  const Milliseconds warn_after_;  // VCCL_WARN_AFTER
  const bool oversubscribed_;
};

}  // namespace vccl::symmetric
