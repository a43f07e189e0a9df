#include "csrc_pg/operations/outcome.hpp"

#include <utility>

#include "base/clock.hpp"
#include "csrc_pg/dumps/dump_files.hpp"

namespace vccl {

bool is_between_ranks(std::optional<ErrorCode> code) noexcept {
  return code != ErrorCode::aborted && code != ErrorCode::invalid && code != ErrorCode::unsupported;
}

std::uint64_t Outcome::next_key() noexcept {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

void Outcome::started() noexcept {
  started_ns_ = base::monotonic_ns();
  if (recorder_) recorder_->started(recorded_, started_ns_);
}

void Outcome::finish(std::exception_ptr error, std::optional<ErrorCode> code) noexcept {
  std::shared_ptr<std::atomic<bool>> mark;  // what it keeps goes without the lock
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(ending_, true)) return;
    error_ = error;
    code_ = code;
    finished_ns_ = base::monotonic_ns();
    // Relaxed: whoever has seen the end by the release store below sees the mark.
    mark = std::move(failure_mark_);
    if (mark && error) mark->store(true, std::memory_order_relaxed);
    // Before anybody can see the end, so that whoever has seen it finds it in the recorder.
    if (recorder_) recorder_->ended(recorded_, !error, finished_ns_, source_.load(std::memory_order_relaxed));
  }
  // This comes before the end, too, and without the lock: a dump may take long, and others may add callbacks.
  if (recorder_ && error && is_between_ranks(code)) dump_after_failure();
  std::vector<Callback> callbacks;
  {
    std::lock_guard lock(mutex_);
    finished_.store(true, std::memory_order_release);
    callbacks = std::move(callbacks_);
  }
  for (const auto& callback : callbacks) callback(error);
}

std::exception_ptr Outcome::error() const {
  return finished() ? error_ : nullptr;
}

std::optional<ErrorCode> Outcome::error_code() const {
  return finished() ? code_ : std::nullopt;
}

float Outcome::duration_ms() const noexcept {
  return finished() && started_ns_ ? static_cast<float>(finished_ns_ - started_ns_) * 1e-6f : 0.0f;
}

std::int64_t Outcome::finished_ns() const noexcept {
  return finished() ? finished_ns_ : 0;
}

void Outcome::when_finished(Callback callback) {
  {
    std::lock_guard lock(mutex_);
    if (!finished()) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback(error());
}

}  // namespace vccl
