#include "csrc_pg/communicators/message_count.hpp"

#include "base/schedule.hpp"
#include "csrc_device/runtime/interruption.hpp"

namespace vccl {

void MessageCount::add(int change) {
  std::lock_guard lock(mutex_);
  under_way_ += change;
  if (under_way_ == 0) none_.notify_all();
}

bool MessageCount::wait_for_none(const Deadline& deadline) {
  const base::schedule::Outside elsewhere;  // ends behind the lock
  std::unique_lock lock(mutex_);
  return vdev::wait_interruptibly(none_, lock, deadline.at, [this] { return under_way_ == 0; });
}

}  // namespace vccl
