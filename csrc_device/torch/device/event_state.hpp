// The state behind a torch.Event of a card.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "base/schedule.hpp"
#include "csrc_device/runtime/event.hpp"
#include "csrc_device/runtime/process_event.hpp"
#include "csrc_device/runtime/stream.hpp"
#include "csrc_device/torch/races/processes.hpp"
#include "csrc_device/torch/races/watch.hpp"

namespace vdev {

/// torch's opaque event pointer points to an EventState. torch records one event object several times, each
/// time with a new point. An event that other processes see, too, stands for its last record in any process.
/// Thread-safe.
class EventState {
 public:
  /// Returns the point that the event stands for.
  Event get() {
    const std::lock_guard lock(mutex_);
    return recorded_elsewhere() ? shared_->point() : event_;
  }
  /// Returns whether the point is reached. Raises the failure before a point that is reached.
  bool query() {
    std::unique_lock lock(mutex_);
    if (!recorded_elsewhere()) {
      const Event event = event_;
      lock.unlock();
      return event.query();
    }
    const bool reached = shared_->reached();
    lock.unlock();
    if (!reached) base::schedule::point(base::schedule::Point::poll);
    return reached;
  }
  void record(Stream& stream) {
    Event point = stream.record();
    auto clock = races::is_on() ? races::point_of(stream) : nullptr;
    const std::lock_guard lock(mutex_);
    event_ = std::move(point);
    clock_ = std::move(clock);
    card_ = stream.card();
    if (!shared_) return;
    own_record_ = shared_->record(stream);
    publish();
  }
  /// Returns what the race detector has noted at the last record, or null.
  races::Point clock() {
    const std::lock_guard lock(mutex_);
    const bool elsewhere = races::is_on() && recorded_elsewhere();
    return elsewhere ? races::record_of_event(shared_->identity()) : clock_;
  }
  /// Returns the card on which the event was last recorded in this process, or -1.
  int card() {
    const std::lock_guard lock(mutex_);
    return card_;
  }
  /// Lets other processes see the event, which was last recorded on `stream`.
  void share(Stream& stream) {
    const std::lock_guard lock(mutex_);
    if (shared_) return;
    auto shared = ProcessEvent::make();
    own_record_ = shared->record(stream);
    shared_ = std::move(shared);
    publish();
  }
  /// Makes this the event of another process.
  void attach(std::shared_ptr<ProcessEvent> shared) {
    const std::lock_guard lock(mutex_);
    shared_ = std::move(shared);
    own_record_ = 0;
    event_ = {};
  }
  /// Returns the event that share() or attach() has set, or null.
  std::shared_ptr<ProcessEvent> shared() {
    const std::lock_guard lock(mutex_);
    return shared_;
  }

 private:
  void publish() {
    if (races::is_on() && clock_) races::publish_event(shared_->identity(), clock_);
  }
  bool recorded_elsewhere() const { return shared_ && shared_->last_record() != own_record_; }

  std::mutex mutex_;
  Event event_;
  races::Point clock_;
  int card_ = -1;
  std::shared_ptr<ProcessEvent> shared_;
  std::uint64_t own_record_ = 0;  // the number of this process's last record of `shared_`
};

}  // namespace vdev
