#include "csrc_device/runtime/promise.hpp"

#include <utility>

#include "base/text.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/queue.hpp"

namespace vdev {

Promise::Promise(std::string name, Fulfiller fulfiller)
    : queue_(Queue::make(std::move(name), false)), event_(queue_->hold(fulfiller == Fulfiller::is_watched)) {}

Promise::~Promise() {
  if (queue_->inherited()) {
    // As in ~Stream, a forked child must not destroy a condition variable on which other threads slept.
    new std::shared_ptr<Queue>(std::move(queue_));
    new Event(std::move(event_));
    return;
  }
  if (!event_.reached())
    fulfil(program_errors().fail_unknown(std::make_exception_ptr(
        CardError(base::text("'", queue_->name(), "' was given up and will never be complete")))));
}

void Promise::add_interruptible(const std::shared_ptr<Interruptible>& user) {
  queue_->add_interruptible(user);
}

void Promise::fulfil(FailurePtr failure) noexcept {
  queue_->release(std::move(failure));
}

}  // namespace vdev
