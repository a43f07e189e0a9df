// What became of one collective.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "transport/error.hpp"

namespace vccl {

/// Written once, by the task that ran the collective (or that was dropped without running); read by any
/// number of handles. Thread-safe. Times are nanoseconds of the steady clock, 0 while unknown.
class Outcome {
 public:
  using Callback = std::function<void(std::exception_ptr)>;

  void started() noexcept;
  /// The first call counts. `code`: of the transport's error behind `error`, where one is. Runs the
  /// callbacks, on the calling thread, with no lock held.
  void finish(std::exception_ptr error, std::optional<ErrorCode> code = std::nullopt) noexcept;
  /// The rank a message came from, known to whoever runs the receive; before finish().
  void set_source(int rank) noexcept { source_.store(rank, std::memory_order_relaxed); }

  bool finished() const noexcept { return finished_.load(std::memory_order_acquire); }
  /// Null while unfinished, and after success.
  std::exception_ptr error() const;
  /// Of the transport's error; none while unfinished, after success, and after an error of another kind.
  std::optional<ErrorCode> error_code() const;
  /// Milliseconds between start and finish; 0 while unfinished, and for what never ran.
  float duration_ms() const noexcept;
  std::int64_t created_ns() const noexcept { return created_ns_; }
  std::int64_t finished_ns() const noexcept;
  /// The rank a finished receive got its message from; -1 before, and for everything else.
  int source() const noexcept { return finished() ? source_.load(std::memory_order_relaxed) : -1; }
  /// Calls `callback` once finished: now, if it is. It must not throw.
  void when_finished(Callback callback);

 private:
  static std::int64_t now_ns() noexcept;

  mutable std::mutex mutex_;
  std::exception_ptr error_;
  std::optional<ErrorCode> code_;
  std::vector<Callback> callbacks_;
  const std::int64_t created_ns_ = now_ns();
  std::int64_t started_ns_ = 0, finished_ns_ = 0;
  std::atomic<int> source_{-1};
  // Stored (release) after everything above was written; finished() pairs with it.
  std::atomic<bool> finished_{false};
};

}  // namespace vccl
