// The result of one operation.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "recorder/flight_recorder.hpp"
#include "transport/error.hpp"

namespace vccl {

/// Returns whether an operation that ended with this code has failed between the ranks. It has not if a rank
/// of the group asked for the end itself, or if this rank called it wrongly. An error without a code is the
/// group's failure, too.
bool is_between_ranks(std::optional<ErrorCode> code) noexcept;

/// Holds the result of one operation. The task that ran the operation, or that was dropped without running,
/// writes it once; any number of handles read it. Times are nanoseconds of the steady clock, 0 while unknown.
/// Thread-safe.
class Outcome {
 public:
  using Callback = std::function<void(std::exception_ptr)>;

  /// Makes the flight recorder note the start and the end. Call this before another thread sees the object.
  void record_in(FlightRecorder& recorder, const RecordedOperation& operation) noexcept {
    recorder_ = &recorder;
    recorded_ = operation;
  }
  /// Sets `mark` if the operation fails, before anybody can see the end. Call this before another thread sees
  /// the object.
  void mark_failure_in(std::shared_ptr<std::atomic<bool>> mark) noexcept { failure_mark_ = std::move(mark); }
  void started() noexcept;
  /// Ends the operation; only the first call counts. `code` is that of the transport's error behind `error`,
  /// if there is one. Runs the callbacks on the calling thread, with no lock held.
  void finish(std::exception_ptr error, std::optional<ErrorCode> code = std::nullopt) noexcept;
  /// Sets the rank from which a message came. The thread that runs the receive calls this before finish().
  void set_source(int rank) noexcept { source_.store(rank, std::memory_order_relaxed); }

  bool finished() const noexcept { return finished_.load(std::memory_order_acquire); }
  /// Returns the error; null while unfinished, and after success.
  std::exception_ptr error() const;
  /// Returns the code of the transport's error. Returns nothing while unfinished, after success, and after an
  /// error that is not the transport's.
  std::optional<ErrorCode> error_code() const;
  /// Returns the milliseconds between start and finish; 0 while unfinished, and for an operation that never
  /// ran.
  float duration_ms() const noexcept;
  /// Returns a number that no other operation of the process has.
  std::uint64_t key() const noexcept { return key_; }
  std::int64_t created_ns() const noexcept { return created_ns_; }
  std::int64_t finished_ns() const noexcept;
  /// Returns the rank from which a finished receive got its message; -1 before, and for other operations. The
  /// relaxed load is ordered by the acquire load in finished().
  int source() const noexcept { return finished() ? source_.load(std::memory_order_relaxed) : -1; }
  /// Calls `callback`, which must not throw, once finished. If the operation is finished already, the call
  /// comes at once.
  void when_finished(Callback callback);

 private:
  static std::uint64_t next_key() noexcept;

  const std::uint64_t key_ = next_key();
  mutable std::mutex mutex_;
  bool ending_ = false;  // finish() was called, and may not have come to its end
  std::exception_ptr error_;
  std::optional<ErrorCode> code_;
  std::vector<Callback> callbacks_;
  FlightRecorder* recorder_ = nullptr;  // lives as long as the process
  RecordedOperation recorded_;
  std::shared_ptr<std::atomic<bool>> failure_mark_;
  const std::int64_t created_ns_ = base::monotonic_ns();
  std::int64_t started_ns_ = 0, finished_ns_ = 0;
  std::atomic<int> source_{-1};
  // The release store comes after everything above was written, and pairs with the acquire load in
  // finished().
  std::atomic<bool> finished_{false};
};

}  // namespace vccl
