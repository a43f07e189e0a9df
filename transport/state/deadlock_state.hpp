// What the DeadlockWatch of a process knows, and its looks.
#pragma once

#include <pthread.h>

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "transport/deadlock_watch.hpp"
#include "transport/shared/flags.hpp"
#include "transport/state/failure_channel.hpp"
#include "transport/state/far_record.hpp"
#include "transport/state/group.hpp"
#include "transport/state/wait_circle.hpp"
#include "transport/state/wait_exchange.hpp"

namespace vccl {

/// A wait of a thread of this process.
struct ThreadWait {
  std::uint64_t id;
  const Group* group;
  pthread_t thread;
  std::string text;
  std::uint64_t number;  // of the operation, or of the meeting
  bool is_meeting;
  std::vector<int> far;  // ranks on other hosts that have to come, too
  Clock::time_point since;

  /// Returns whether the rank at `index` of the group's host has not come to this operation or meeting.
  bool awaits(int index) const {
    const RankLine& line = group->host.line(index);
    if (is_meeting) return read(line.meetings) < number;
    return read(line.operations[number & 1].sequence) != number;
  }
};

/// The thread's looks are in deadlock_watch.cpp, and what it concludes from them in deadlock_judge.cpp.
struct DeadlockWatch::State {
  explicit State(Token own) : token(own) {}

  /// A communicator that was added.
  struct Known {
    const Group* group;
    FailureChannel* failures;
    WatchedMessages* messages = nullptr;  // if some have been under way for a while
  };
  struct PendingMessages {
    const Group* group;
    std::vector<WatchedMessages::Pending> messages;
  };

  const Token token;

  std::mutex mutex;  // guards everything below; not held while blocked_threads is called
  std::condition_variable changed;
  std::shared_ptr<const BlockedThreads> blocked_threads;
  std::vector<Known> communicators;  // in the order in which they were made
  std::vector<ThreadWait> waits;
  std::uint64_t next_id = 1;
  bool running = false, stopped = false;

  // The next members are what is published, and for how long it has held.
  std::uint64_t version = 0, looks = 0;
  PublishedWaits published{};
  std::vector<std::uint64_t> ids;  // of the waits and of the messages
  bool in_circle = false;          // whether this process was part of a circle of waits at the last look
  std::optional<std::uint64_t> blocked;

  // What other hosts have to know, and what is known of them.
  WaitFacts facts;
  std::uint64_t state = 1;        // of `facts`
  Clock::time_point ids_since{};  // since when `ids` has been the same
  std::vector<Token> asked;       // processes on other hosts that may be awaited here
  FarRecords far;
  std::uint64_t rounds = 0;  // WaitExchange::rounds() before `far` was read
  WaitExchange exchange;

  HeldVersions candidate, doubtful;  // what may turn out to be a deadlock
  std::uint64_t warned = 0;          // the version for which a warning was written

  struct Verdict {
    std::string text;
    std::set<std::uint64_t> communicators;
    std::map<Token, std::uint64_t> versions;  // of the members
    int looks = 0;                            // looks since the verdict
  };
  std::optional<Verdict> verdict;

  std::uint64_t begin(ThreadWait wait);
  void start();
  void run();
  void look();
  bool has_messages() const;
  std::optional<std::vector<PendingMessages>> pending_messages() const;
  std::vector<std::uint64_t> ids_with(const std::vector<PendingMessages>& messages) const;
  PublishedWaits describe(const std::vector<PendingMessages>& messages, bool& complete);
  WaitFacts facts_now() const;
  void exchange_with_other_hosts(const std::vector<Token>& unknown);
  void publish(const PublishedWaits& waits);
  using TokenLine = std::pair<Token, const RankLine*>;
  std::vector<TokenLine> lines_by_token() const;
  Records read_records(std::vector<Token>& unknown) const;
  void judge();
  void conclude(const std::set<Token>& circle, const Records& records);
  void warn_once(const std::set<Token>& members, const Records& records);
  bool all_members_know(const Records& records);
  void carry_out();
};

}  // namespace vccl
