#include "csrc_device/runtime/activity.hpp"

#include <unistd.h>

#include <utility>

#include "base/clock.hpp"
#include "csrc_device/runtime/activity/recorder.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/queue.hpp"

namespace vdev {
namespace {

/// What the profiler has open on a thread. It belongs to one recording: an operator that was still open when
/// the recording ended never closes its correlation.
struct OpenOnThread {
  struct Correlation {
    std::uint64_t id;
    int inside = 0;  // how many were opened directly inside of it
  };
  std::uint64_t recording = 0;
  std::vector<Correlation> correlations;
  std::vector<std::shared_ptr<const ActivityRange>> ranges;

  std::shared_ptr<const ActivityRange> range() const {
    return ranges.empty() ? ActivityRecorder::of_this_process().outermost_range() : ranges.back();
  }
};

thread_local constinit const ActivityScope* innermost_scope = nullptr;
thread_local constinit const ActivityRun* innermost_run = nullptr;

OpenOnThread& open_on_thread() {
  thread_local OpenOnThread open;
  const std::uint64_t recording = recording_under_way.load(std::memory_order_relaxed);
  if (open.recording != recording) {
    open.recording = recording;
    open.correlations.clear();
    open.ranges.clear();
  }
  return open;
}

std::int32_t thread_number() {
  thread_local const std::int32_t number = ::gettid();
  return number;
}

}  // namespace

void ActivityScope::open(ActivityLabel label) {
  label_ = std::move(label);
  begin_ = base::monotonic_ns();
  outer_ = std::exchange(innermost_scope, this);
}

void ActivityScope::close() noexcept {
  innermost_scope = outer_;
}

ActivityLabel current_label() {
  return innermost_scope != nullptr ? *innermost_scope->label_ : ActivityLabel{};
}

std::unique_ptr<Launch> make_launch(const std::shared_ptr<const Lane>& lane) {
  auto launch = std::make_unique<Launch>();
  auto& open = open_on_thread();
  launch->recording = open.recording;
  launch->lane = lane;
  launch->end = base::monotonic_ns();
  launch->begin = launch->end;
  if (const auto* scope = innermost_scope) {
    launch->label = *scope->label_;
    launch->begin = scope->begin_;
  }
  if (launch->label.correlation == 0 && !open.correlations.empty()) {
    auto correlation = open.correlations.rbegin();
    launch->label.correlation = correlation->id;
    for (auto& outer : launch->outer_correlations) {
      if (++correlation == open.correlations.rend() || correlation->inside < 2) break;
      outer = correlation->id;
    }
  }
  launch->range = open.range();
  launch->thread = thread_number();
  return launch;
}

ActivityRun::ActivityRun(std::unique_ptr<Launch> launch) noexcept : launch_(std::move(launch)) {
  enter();
}

ActivityRun::ActivityRun(int card) {
  if (is_recording() && innermost_run == nullptr) [[unlikely]] {
    launch_ = make_launch(current_stream(card)->queue()->lane());
  }
  enter();
}

std::unique_ptr<Launch> ActivityRun::part_of_run(ActivityLabel label) {
  const ActivityRun* run = innermost_run;
  while (run != nullptr && !run->launch_) run = run->outer_;
  if (run == nullptr) return nullptr;
  auto launch = std::make_unique<Launch>(*run->launch_);
  if (label.correlation == 0) label.correlation = launch->label.correlation;
  launch->label = std::move(label);
  launch->is_part = true;
  return launch;
}

void ActivityRun::enter() noexcept {
  scope_ = std::exchange(innermost_scope, nullptr);
  outer_ = std::exchange(innermost_run, this);
  if (launch_) [[unlikely]] {
    begin_ = base::monotonic_ns();
  }
}

ActivityRun::~ActivityRun() {
  innermost_scope = scope_;
  innermost_run = outer_;
  if (launch_) [[unlikely]] {
    ActivityRecorder::of_this_process().add({std::move(launch_), begin_, base::monotonic_ns()});
  }
}

void open_correlation(std::uint64_t id) {
  if (!is_recording()) return;
  auto& open = open_on_thread().correlations;
  if (!open.empty()) ++open.back().inside;
  open.push_back({id});
}

void close_correlation() noexcept {
  auto& open = open_on_thread();
  if (!open.correlations.empty()) open.correlations.pop_back();
}

std::uint64_t current_correlation() noexcept {
  const auto& open = open_on_thread();
  return open.correlations.empty() ? 0 : open.correlations.back().id;
}

void open_range(std::uint64_t id) {
  if (!is_recording()) return;
  auto& open = open_on_thread();
  auto range = std::make_shared<const ActivityRange>(ActivityRange{id, open.range()});
  if (!range->outer) ActivityRecorder::of_this_process().set_outermost_range(range);
  open.ranges.push_back(std::move(range));
}

void close_range() noexcept {
  auto& open = open_on_thread();
  if (open.ranges.empty()) return;
  const auto closed = std::move(open.ranges.back());
  open.ranges.pop_back();
  if (!closed->outer) ActivityRecorder::of_this_process().unset_outermost_range(closed.get());
}

void record_run(Activity activity) noexcept {
  ActivityRecorder::of_this_process().add(std::move(activity));
}

std::uint64_t start_recording(std::size_t most) {
  return ActivityRecorder::of_this_process().start(most);
}

Recorded stop_recording(std::uint64_t recording) {
  return ActivityRecorder::of_this_process().stop(recording);
}

}  // namespace vdev
