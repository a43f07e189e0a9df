#include "csrc_device/runtime/capture.hpp"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <utility>

#include "base/fork.hpp"
#include "base/text.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/graph.hpp"
#include "csrc_device/runtime/queue.hpp"

namespace vdev {
namespace {

/// The captures under way, for the calls that their modes forbid. The count spares other calls the lock.
struct CapturesUnderWay {
  std::atomic<int> count{0};
  std::mutex mutex;
  std::vector<std::weak_ptr<Capture>> captures;
};

CapturesUnderWay& captures_under_way() {
  static base::OnePerProcess<CapturesUnderWay> one;
  return one.get();
}

std::string refusal_text(const char* what) {
  return base::text("operation not permitted when stream is capturing: ", what);
}

void merge_points(std::vector<std::uint32_t>& into, const std::vector<std::uint32_t>& from) {
  for (const auto task : from) {
    if (std::ranges::find(into, task) == into.end()) into.push_back(task);
  }
}

}  // namespace

PoolNumber new_private_pool() noexcept {
  static std::atomic<PoolNumber> next{kFirstPrivatePool};
  return next.fetch_add(1, std::memory_order_relaxed);  // nothing is published with the number
}

std::shared_ptr<Capture> Capture::begin(const std::shared_ptr<Stream>& stream, CaptureMode mode,
                                        PoolNumber pool, std::shared_ptr<void> attachment) {
  auto capture = std::make_shared<Capture>(mode, pool, std::move(attachment));
  const auto& queue = stream->queue();
  queue->check_fork();
  capture->origin_ = queue.get();
  {
    std::lock_guard lock(capture->mutex_);
    capture->queues_[queue.get()].queue = queue;
    if (!queue->begin_capture(capture)) {
      capture->ended_ = true;
      throw CardError(base::text("stream '", stream->name(), "' is being captured already"));
    }
  }
  auto& all = captures_under_way();
  std::lock_guard lock(all.mutex);
  all.captures.push_back(capture);
  all.count.fetch_add(1, std::memory_order_relaxed);
  labels_wanted.fetch_add(1, std::memory_order_relaxed);
  return capture;
}

/// The caller holds the lock.
void Capture::leave_all() {
  ended_ = true;
  for (auto& [key, captured] : queues_) captured.queue->end_capture();
  auto& all = captures_under_way();
  std::lock_guard lock(all.mutex);
  all.count.fetch_sub(1, std::memory_order_relaxed);
  labels_wanted.fetch_sub(1, std::memory_order_relaxed);
  std::erase_if(all.captures, [this](const auto& other) {
    const auto held = other.lock();
    return !held || held.get() == this;
  });
}

/// Returns the streams whose last tasks do not come before the end of the first stream. The caller holds the
/// lock.
std::string Capture::unjoined() const {
  std::vector<bool> before(tasks_.size(), false);
  auto next = queues_.at(origin_).last;
  while (!next.empty()) {
    const auto task = next.back();
    next.pop_back();
    if (before[task]) continue;
    before[task] = true;
    next.insert(next.end(), tasks_[task].after.begin(), tasks_[task].after.end());
  }
  std::string names;
  for (const auto& [key, captured] : queues_) {
    if (std::ranges::all_of(captured.last, [&](auto task) { return before[task]; })) continue;
    names += base::text(names.empty() ? "'" : ", '", captured.queue->name(), "'");
  }
  return names;
}

std::shared_ptr<Graph> Capture::end() {
  // What is left here is destroyed without the lock.
  std::vector<CapturedTask> tasks;
  std::vector<std::unique_ptr<PoolUse>> pools;
  std::vector<std::shared_ptr<ReplayUser>> users;
  std::string error;
  {
    std::lock_guard lock(mutex_);
    if (ended_) throw CardError("the capture has ended already");
    if (!invalid_.empty()) {
      error = base::text("the capture was invalidated by an earlier call: ", invalid_);
    } else if (const auto names = unjoined(); !names.empty()) {
      error = base::text("capture of unjoined work: the captured stream does not wait for the last work of ",
                         names, ", which joined the capture");
    }
    leave_all();
    tasks.swap(tasks_);
    pools.swap(pools_);
    users.swap(users_);
    queues_.clear();
  }
  if (!error.empty()) throw CardError(error);
  // Replays lock the users in this order, so that two graphs do not lock them the other way round.
  std::ranges::sort(users);
  return std::make_shared<Graph>(std::move(tasks), std::move(users), std::move(pools));
}

void Capture::invalidate(const std::string& reason) {
  std::lock_guard lock(mutex_);
  if (invalid_.empty()) invalid_ = reason;
}

void Capture::add_user(const std::shared_ptr<ReplayUser>& user) {
  std::lock_guard lock(mutex_);
  if (std::ranges::find(users_, user) == users_.end()) users_.push_back(user);
}

PoolNumber Capture::pool_in(CachingAllocator& allocator) {
  std::lock_guard lock(mutex_);
  if (ended_) return kProgramPool;
  const auto known =
      std::ranges::any_of(pools_, [&](const auto& use) { return &use->allocator() == &allocator; });
  if (!known) pools_.push_back(std::make_unique<PoolUse>(allocator, pool_));
  return pool_;
}

bool Capture::add(const Queue& queue, Task& task) {
  std::lock_guard lock(mutex_);
  const auto found = queues_.find(&queue);
  if (ended_ || found == queues_.end()) return false;
  auto& last = found->second.last;
  const auto number = static_cast<std::uint32_t>(tasks_.size());
  tasks_.push_back({std::move(task), std::move(last), queue.name(), current_label()});
  last = {number};
  return true;
}

std::shared_ptr<const CapturedPoint> Capture::record(const Queue& queue) {
  std::lock_guard lock(mutex_);
  const auto found = queues_.find(&queue);
  if (ended_ || found == queues_.end()) return nullptr;
  return std::make_shared<const CapturedPoint>(CapturedPoint{shared_from_this(), found->second.last});
}

bool Capture::wait(const Queue& queue, const CapturedPoint& point) {
  std::lock_guard lock(mutex_);
  const auto found = queues_.find(&queue);
  if (ended_ || found == queues_.end()) return false;
  merge_points(found->second.last, point.after);
  return true;
}

bool Capture::wait_for(const Completion& point, const std::shared_ptr<Queue>& queue) {
  const auto capturing = queue->capture();
  if (!point.captured) {
    if (!capturing) return false;
    constexpr const char* text =
        "dependency created on uncaptured work in another stream: a stream that is capturing cannot wait for "
        "an event that was recorded outside of the capture";
    capturing->invalidate(text);
    throw CardError(text);
  }
  const auto& theirs = point.captured->capture;
  if (capturing && capturing != theirs) {
    constexpr const char* text = "operation would result in a merge of separate capture sequences";
    capturing->invalidate(text);
    theirs->invalidate(text);
    throw CardError(text);
  }
  if (!capturing || !capturing->wait(*queue, *point.captured)) theirs->join(queue, *point.captured);
  return true;
}

void Capture::join(const std::shared_ptr<Queue>& queue, const CapturedPoint& point) {
  std::lock_guard lock(mutex_);
  if (ended_)
    throw CardError(
        "dependency created on uncaptured work in another stream: the event was recorded in a capture "
        "that has ended");
  auto& captured = queues_[queue.get()];
  captured.queue = queue;
  if (!queue->begin_capture(shared_from_this()) && queue->capture().get() != this) {
    queues_.erase(queue.get());
    if (invalid_.empty()) invalid_ = "a stream of another capture waited for an event of this one";
    throw CardError("operation would result in a merge of separate capture sequences");
  }
  merge_points(captured.last, point.after);
}

bool Capture::concerns_this_thread() const {
  return mode_ == CaptureMode::kGlobal ||
         (mode_ == CaptureMode::kThreadLocal && thread_ == std::this_thread::get_id());
}

void refuse_captured(const Stream& stream, const char* what) {
  const auto capture = stream.queue()->capture();
  if (!capture) return;
  capture->invalidate(refusal_text(what));
  throw CardError(refusal_text(what));
}

void refuse_during_capture(const char* what) {
  auto& all = captures_under_way();
  // The order is relaxed: the caller's own captures are seen anyway, and with those of other threads the call
  // races on CUDA, too.
  if (all.count.load(std::memory_order_relaxed) == 0) [[likely]] {
    return;
  }
  std::vector<std::shared_ptr<Capture>> captures;
  {
    std::lock_guard lock(all.mutex);
    for (const auto& known : all.captures) {
      if (auto held = known.lock(); held && held->concerns_this_thread()) captures.push_back(std::move(held));
    }
  }
  if (captures.empty()) return;
  for (const auto& capture : captures) capture->invalidate(refusal_text(what));
  throw CardError(refusal_text(what));
}

}  // namespace vdev
