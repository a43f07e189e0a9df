// Messages between any two ranks of a group, matched by source and tag: send and receive.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "transport/deadline.hpp"
#include "transport/error.hpp"

namespace vccl {

struct Signature;

/// Of receive(): whoever sends first.
inline constexpr int kAnySource = -1;

/// Point-to-point operations of one communicator, beside its collectives: any number under way, none waits
/// for another, so a group of sends and receives in any order cannot deadlock.
///
/// A receive takes the first message, in the order of the sender's calls, whose tag is its own and whose
/// source fits; receives that fit the same message take turns in the order of their calls. Thread-safe.
///
/// Short messages are on their way when send() returns, long ones once the receiver asks for them. A send is
/// done when its memory may be written again, a receive when its memory holds the message. At its deadline,
/// or when the peer dies or leaves, an operation fails, and the communicator with it, as a collective would.
/// A receive from any source fails so when every other rank is gone, unless this rank has sent to itself
/// before.
class Messages {
 public:
  /// Called once, with the sender's rank (-1 after an error), and null after success. On any thread, also
  /// within send() and receive(), with no lock held; it must not block.
  using Done = std::function<void(int source, const Error* error)>;

  virtual ~Messages() = default;

  /// `signature`: what both sides must have in common (the kind of element and their number); a difference is
  /// Error(mismatch) naming both sides, on both. The memory stays as it is, and alive, until `done`. Memory
  /// in one of the communicator's regions is read and written in place by a peer on this host, elsewhere it
  /// is staged. The rank itself is a peer like any other. Never blocks, and throws nothing: what goes wrong,
  /// also before anything is sent, goes to `done`.
  virtual void send(int to, int tag, const Signature& signature, std::span<const std::byte> bytes,
                    const Deadline& deadline, Done done) = 0;
  /// `from`: a rank, or kAnySource.
  virtual void receive(int from, int tag, const Signature& signature, std::span<std::byte> bytes,
                       const Deadline& deadline, Done done) = 0;
};

}  // namespace vccl
