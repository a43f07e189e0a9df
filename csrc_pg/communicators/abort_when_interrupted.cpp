#include "csrc_pg/communicators/abort_when_interrupted.hpp"

#include "csrc_pg/communicators/communicators.hpp"
#include "transport/interruption_check.hpp"

namespace vccl {

void let_interruptions_reach_transport() {
  set_interruption_check([] { return vdev::interrupted() ? vdev::interruption_name() : std::string(); });
}

void GroupToAbort::abort(const std::string& reason) noexcept {
  std::lock_guard lock(mutex_);
  if (group_) group_->abort(reason);
}

bool GroupToAbort::closing() noexcept {
  std::lock_guard lock(mutex_);
  return !group_ || group_->closing();
}

void GroupToAbort::forget() {
  std::lock_guard lock(mutex_);
  group_ = nullptr;
}

void AbortsWhenInterrupted::interrupt(const std::string& reason) noexcept {
  const auto communicator = communicator_.lock();
  if (!communicator) return;
  if (when_ == When::kAlways || communicator->busy() || communicator->failed()) group_->abort(reason);
}

}  // namespace vccl
