// Looks at the other hosts while the ranks of this one do not.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "transport/state/current_operation.hpp"
#include "transport/state/failure_channel.hpp"

namespace vccl {

/// Carries news between the hosts of a group: that the group has failed, and which ranks have gone
/// (LostRanks). A rank that computes neither reads nor passes on what its links to other hosts bring, so the
/// ranks behind it would not hear of it. The watch looks every base::kWatchPeriod on a thread of its own, and
/// leaves the links alone where the rank uses them.
///
/// If a rank has gone, an operation that is under way for long cannot end any more, and the watch fails the
/// group. It does not fail a group that is not used.
class HostWatch {
 public:
  /// A rank may have gone after it had done its part of an operation, which may still succeed for so long.
  static constexpr Milliseconds kLongLost{500};

  /// `listen` receives from the links to other hosts and passes on what is new, unless an operation is under
  /// way. `end_of` is Communicator::end_of(). Neither blocks or throws. Throws Error(system) if the system
  /// has no thread to give.
  HostWatch(const Group& group, const CurrentOperation& operation, FailureChannel& failures,
            std::function<void()> listen, std::function<std::optional<RankEnd>(int)> end_of);
  /// Ends the thread.
  ~HostWatch();
  HostWatch(const HostWatch&) = delete;
  HostWatch& operator=(const HostWatch&) = delete;

 private:
  void run();
  void look();
  void note_dead_ranks_of_host();
  void fail_for_lost();

  const Group& group_;
  const CurrentOperation& operation_;
  FailureChannel& failures_;
  const std::function<void()> listen_;
  const std::function<std::optional<RankEnd>(int)> end_of_;
  std::uint64_t seen_ = 0;                            // the number of operations at the last look
  std::optional<Clock::time_point> operation_stuck_;  // since when a rank was known to be gone meanwhile
  std::mutex mutex_;                                  // guards over_
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace vccl
