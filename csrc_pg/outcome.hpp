// What became of one collective.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>

namespace vccl {

/// Written once, by the task that ran the collective (or that was dropped without running); read by any
/// number of handles. Thread-safe.
class Outcome {
 public:
  using Callback = std::function<void(std::exception_ptr)>;

  void started() noexcept;
  /// The first call counts. Runs the callback, on the calling thread, with no lock held.
  void finish(std::exception_ptr error) noexcept;

  bool finished() const noexcept { return finished_.load(std::memory_order_acquire); }
  /// Null while unfinished, and after success.
  std::exception_ptr error() const;
  /// Milliseconds between start and finish; 0 while unfinished.
  float duration_ms() const noexcept;
  /// Calls `callback` once finished: now, if it is. One at most.
  void when_finished(Callback callback);

 private:
  mutable std::mutex mutex_;
  std::exception_ptr error_;
  Callback callback_;
  std::int64_t started_ns_ = 0, finished_ns_ = 0;
  // Stored (release) after everything above was written; finished() pairs with it.
  std::atomic<bool> finished_{false};
};

}  // namespace vccl
