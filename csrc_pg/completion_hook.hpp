// What a user hangs on the end of every collective of a group.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "csrc_pg/outcome.hpp"

namespace vccl {

/// Calls a hook once for each collective, in the order in which they end, on a thread of its own: a hook may
/// take as long as it likes and use the group. What a hook throws is reported on stderr and changes nothing.
/// Thread-safe. In a forked child of the process that made it, nothing does anything.
class CompletionHook {
 public:
  using Hook = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;

  explicit CompletionHook(Hook&& hook);  // moved and never copied: copying a Python function takes the GIL
  ~CompletionHook();
  CompletionHook(const CompletionHook&) = delete;
  CompletionHook& operator=(const CompletionHook&) = delete;

  /// The hook is called once `outcome` is finished, whether or not the operation succeeded.
  void watch(const std::shared_ptr<Outcome>& outcome, c10d::OpType type, std::uint64_t sequence);
  /// Until the hook has returned for everything watched. False when nothing got on for `patience`; at once
  /// inside the hook itself, which would wait for its own end.
  bool wait(std::chrono::milliseconds patience);
  /// wait(), then ends the thread; a hook that does not return is left to itself. No hook is called after
  /// that. Idempotent.
  void close(std::chrono::milliseconds patience) noexcept;
  /// Whether this is a forked child of the process that made it.
  bool inherited() const;

 private:
  struct State;
  static void serve(const std::shared_ptr<State>& state);

  const int process_;  // that made this
  // The thread and the outcomes that are watched share it: both may be there longer than this object.
  const std::shared_ptr<State> state_;
  std::mutex closing_;
  std::thread thread_;
};

}  // namespace vccl
