// The hook that a user sets for the end of every collective of a group.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "base/fork.hpp"
#include "csrc_pg/operations/outcome.hpp"

namespace vccl {

/// Calls a hook once for each collective, in the order in which the collectives end. The hook has a thread of
/// its own, so that it may take as long as it likes and use the group. What the hook throws is reported on
/// stderr and changes nothing. Thread-safe. In a forked child of the process that made it, no member does
/// anything.
class CompletionHook {
 public:
  using Hook = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;

  explicit CompletionHook(Hook&& hook);  // moved, because copying a Python function takes the GIL
  ~CompletionHook();
  CompletionHook(const CompletionHook&) = delete;
  CompletionHook& operator=(const CompletionHook&) = delete;

  /// Calls the hook once `outcome` is finished, whether or not the operation succeeded.
  void watch(const std::shared_ptr<Outcome>& outcome, c10d::OpType type, std::uint64_t sequence);
  /// Blocks until the hook has returned for everything watched. Returns false if no call of the hook returned
  /// for `patience`. Inside the hook it returns true at once, because it would wait for its own end.
  bool wait(std::chrono::milliseconds patience);
  /// Does what wait() does, then ends the thread. If the hook does not return, the thread is detached. The
  /// hook is not called after that. Further calls do nothing.
  void close(std::chrono::milliseconds patience) noexcept;
  /// Returns whether this is a forked child of the process that made the object.
  bool inherited() const;

 private:
  struct State;
  static void serve(const std::shared_ptr<State>& state);

  const base::ProcessMark made_;
  // The thread and the watched outcomes share the state, because both may outlive this object.
  const std::shared_ptr<State> state_;
  std::mutex closing_;
  std::thread thread_;
};

}  // namespace vccl
