#include "csrc_device/runtime/stream.hpp"

#include <utility>

#include "base/schedule.hpp"
#include "csrc_device/runtime/capture.hpp"
#include "csrc_device/runtime/environment.hpp"
#include "csrc_device/runtime/queue.hpp"

namespace vdev {

Stream::Stream(int card, std::int64_t id, int priority, std::string name)
    : card_(card),
      id_(id),
      priority_(priority),
      queue_(Queue::make(std::move(name), environment().launch_blocking, card, id, priority)) {}

Stream::~Stream() {
  if (queue_->inherited()) {
    // In a forked child, the worker does not exist, and destroying a condition variable on which it sleeps
    // would hang.
    new std::shared_ptr<Queue>(std::move(queue_));
    return;
  }
  queue_->close();
}

const std::string& Stream::name() const {
  return queue_->name();
}

void Stream::enqueue(Task task, Start start, Waits waits) {
  queue_->enqueue(std::move(task), start, waits);
}

Event Stream::record() {
  return Event(queue_->record());
}

void Stream::wait(const Event& event) {
  queue_->wait(event.completion());
}

bool Stream::idle() const {
  refuse_captured(*this, "a query of the stream");
  return queue_->idle();
}

bool Stream::query() const {
  const bool is_idle = idle();
  if (!is_idle) base::schedule::point(base::schedule::Point::poll);
  queue_->failures().raise_one_for_all(error_epoch());
  return is_idle;
}

void Stream::synchronize() {
  const std::uint64_t epoch = error_epoch();
  wait_for_all();
  queue_->failures().raise_one_for_all(epoch);
}

void Stream::synchronize_before_reading() {
  const std::uint64_t epoch = error_epoch();
  wait_for_all();
  queue_->failures().raise_before_reading(epoch);
}

void Stream::wait_for_all() {
  refuse_captured(*this, "a synchronisation of the host with the stream");
  queue_->help_until(queue_->running_here() ? ~std::uint64_t{0} : queue_->last());
}

void Stream::drain() {
  if (queue_->inherited() || queue_->running_here()) return;
  refuse_captured(*this, "a synchronisation of the host with the stream");
  queue_->help_until(queue_->last());
}

void Stream::abandon(std::exception_ptr error) {
  queue_->abandon(std::move(error));
}

}  // namespace vdev
