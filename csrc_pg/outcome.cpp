#include "csrc_pg/outcome.hpp"

#include <chrono>
#include <utility>

namespace vccl {
namespace {

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

void Outcome::started() noexcept {
  started_ns_ = now_ns();
}

void Outcome::finish(std::exception_ptr error) noexcept {
  Callback callback;
  {
    std::lock_guard lock(mutex_);
    if (finished()) return;
    error_ = error;
    finished_ns_ = now_ns();
    finished_.store(true, std::memory_order_release);
    callback = std::move(callback_);
  }
  if (callback) callback(error);
}

std::exception_ptr Outcome::error() const {
  return finished() ? error_ : nullptr;
}

float Outcome::duration_ms() const noexcept {
  return finished() && started_ns_ ? static_cast<float>(finished_ns_ - started_ns_) * 1e-6f : 0.0f;
}

void Outcome::when_finished(Callback callback) {
  {
    std::lock_guard lock(mutex_);
    if (!finished()) {
      callback_ = std::move(callback);
      return;
    }
  }
  callback(error());
}

}  // namespace vccl
