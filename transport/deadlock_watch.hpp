// Finds ranks that wait for each other in different calls and would wait for ever.
#pragma once

#include <pthread.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/fork.hpp"
#include "transport/deadline.hpp"

namespace vccl {

class FailureChannel;
struct Group;

/// Tells whether this process can go on only by the end of an operation that one of `waiting` waits in. This
/// is so if every other thread that might begin an operation is blocked, directly or not, by one of
/// `waiting`. Returns nothing if that is not certain. Otherwise returns a number that stays the same for as
/// long as all these threads have stayed blocked without a break. The watch calls this at most every 100 ms
/// on its own thread, so the function may take its time.
using BlockedThreads = std::function<std::optional<std::uint64_t>(std::span<const pthread_t> waiting)>;

/// The messages of a communicator, as far as the watch has to know them.
class WatchedMessages {
 public:
  struct Pending {
    std::uint64_t number = 0;  // different for each message of the communicator
    int peer = 0;              // the rank of the group that has to act; kAnySource: any of them
    std::string text;          // "recv from rank 1 of message(float32, 4 elements) with tag 5 in group G"
  };
  virtual ~WatchedMessages() = default;
  /// Moves on what can be moved, and then returns all messages that are under way. Each of them can end only
  /// by a call of its peer. Returns nothing if that is not certain, because something has moved or is moving.
  virtual std::optional<std::vector<Pending>> pending() noexcept = 0;
};

/// Detects deadlocks between communicators. Each process has one watch.
///
/// Two groups, or one group's communicators of the CPU and of cards, may be used in different order on
/// different ranks, as long as no rank waits in between. But if one rank waits in one group for a rank that
/// waits in the other group, neither rank can ever go on, and neither communicator alone can see it. So if a
/// process's wait at an operation's start lasts, the process publishes what it waits for, and for which
/// processes, to the others of its host (WaitRecord). If the wait lasts for about a second and the process is
/// in a group of several hosts, it does so to the other hosts as well (WaitExchange). It then looks for a set
/// of processes in which
///   - each process is blocked: it can go on only by the end of one of the waits that it has published, and
///   - each of those waits is for at least one process of the set that has not begun that operation.
/// For the first of these waits to end, a process of the set would have to begin an operation before that,
/// and none can.
///
/// Messages count as waits as well, whether a thread waits for them or not: a process is blocked if it can go
/// on only by the end of one of its operations or messages. A receive waits for its source to send, and a
/// send for its receiver to receive. What a peer has sent before it was blocked has arrived, because each
/// look moves messages on and counts only if nothing has moved. Between hosts, what was sent may be under
/// way. So a process on another host counts as waited for only if its record says that it has not begun the
/// operation, or that it has sent no more than has come from it; and only for as long as it says the same
/// (PublishedWait::states).
///
/// The processes cannot all be read at one instant. But a version of a record stands for a span of time: what
/// it says was true from the first look at which its process published it to the last look that confirmed it.
/// The watch reads the versions of all members once, and waits until each member has looked twice more. Then
/// everything was true at the time of the first reading.
///
/// A member that has concluded this waits until the other members have concluded it too, so that none goes
/// away and leaves others without the proof. Then it fails all communicators that the set waits in with the
/// same Error(mismatch). All this costs nothing before a wait has lasted.
class DeadlockWatch {
 public:
  static DeadlockWatch& of_this_process();

  /// Sets the function that finds blocked threads, because the transport cannot know them. Without it no
  /// process counts as blocked.
  void set_blocked_threads(BlockedThreads blocked_threads);
  /// Ends the watch's thread within `patience`, and lets no thread start again. Call this at the end of the
  /// process.
  void stop(Milliseconds patience) noexcept;

  /// Call add() once the control memory is mapped, and remove() before the communicator ends.
  void add(const Group& group, FailureChannel& failures);
  void remove(const Group& group) noexcept;

  /// Begins a wait of the calling thread in the group's operation `sequence`, which `call` is the text of
  /// (CurrentOperation::call_text()). It is for the ranks of this host, and for those of the ranks `far` on
  /// other hosts, that have not begun the operation. Returns the wait's id.
  std::uint64_t begin_wait(const Group& group, std::uint64_t sequence, const std::string& call,
                           std::vector<int> far);
  /// Begins a wait of the calling thread for ranks that meet in another way, which they announce over
  /// `group`. `what` says what they do. Returns the wait's id.
  std::uint64_t begin_meeting(const Group& group, const std::string& what);
  void end_wait(std::uint64_t id) noexcept;
  /// Call watch() when messages of the group have been under way for a while without moving, and let_be()
  /// when none is under way any more. No lock that pending() needs may be held. The watch does not call
  /// pending() after let_be().
  void watch(const Group& group, WatchedMessages& messages);
  void let_be(const Group& group) noexcept;

  /// Returns the number by which other processes know this one (RankLine::process).
  std::uint64_t token() const noexcept;
  /// Returns why this process does not know what the processes on other hosts wait for, or an empty text if
  /// it does or need not.
  std::string far_silence() const;

  /// Returns what threads of this process wait for, each as "all_reduce(...) on cpu, operation 3 of group a,
  /// for rank 1, 2". A wait that has not lasted is left out, and so is a wait for another host.
  std::vector<std::string> waits() const;

 private:
  friend class base::OnePerProcess<DeadlockWatch>;
  struct State;
  DeadlockWatch();
  std::unique_ptr<State> state_;
};

/// Adds a communicator to the watch, and removes it when destroyed.
class Watched {
 public:
  Watched(const Group& group, FailureChannel& failures) : group_(&group) {
    DeadlockWatch::of_this_process().add(group, failures);
  }
  ~Watched() {
    if (group_) DeadlockWatch::of_this_process().remove(*group_);
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;
  /// Call this in a forked child, which has a watch of its own.
  void forget() { group_ = nullptr; }

 private:
  const Group* group_;
};

/// Reports a wait that has lasted to the watch, until destroyed.
class LastingWait {
 public:
  LastingWait(const Group& group, std::uint64_t sequence, const std::string& call, std::vector<int> far)
      : id_(DeadlockWatch::of_this_process().begin_wait(group, sequence, call, std::move(far))) {}
  LastingWait(const Group& group, const std::string& meeting)
      : id_(DeadlockWatch::of_this_process().begin_meeting(group, meeting)) {}
  ~LastingWait() { DeadlockWatch::of_this_process().end_wait(id_); }
  LastingWait(const LastingWait&) = delete;
  LastingWait& operator=(const LastingWait&) = delete;

 private:
  const std::uint64_t id_;
};

}  // namespace vccl
