#include "csrc_device/runtime/blocks/allocator_history.hpp"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <utility>

#include "csrc_device/runtime/queue.hpp"

namespace vdev {
namespace {

struct Shared {
  std::mutex mutex;
  HistorySettings settings;
  std::shared_ptr<const std::string> label;
};

Shared& shared_history() {
  static auto* shared = new Shared;  // outlives every thread
  return *shared;
}

}  // namespace

std::atomic<bool> AllocatorHistory::recording_{false};

void record_history(const HistorySettings& settings) {
  Shared& shared = shared_history();
  std::lock_guard lock(shared.mutex);
  shared.settings = settings;
  // Whoever misses this store records the next event at the latest, which is all that is promised.
  AllocatorHistory::recording_.store(settings.events || settings.sites != HistorySettings::Sites::none,
                                     std::memory_order_relaxed);
}

HistorySettings history_settings() {
  Shared& shared = shared_history();
  std::lock_guard lock(shared.mutex);
  return shared.settings;
}

void label_history(const std::string& label) {
  Shared& shared = shared_history();
  std::lock_guard lock(shared.mutex);
  shared.label = label.empty() ? nullptr : std::make_shared<const std::string>(label);
}

std::string history_label() {
  Shared& shared = shared_history();
  std::lock_guard lock(shared.mutex);
  return shared.label ? *shared.label : std::string();
}

CallSite call_site(HistorySettings::Sites sites) {
  // A thread that runs a task may hold up one that holds the GIL and waits for the task.
  if (!AllocatorHistory::recording() || Queue::inside_task()) return nullptr;
  const HistorySettings settings = history_settings();
  return settings.sites >= sites && settings.gather ? settings.gather() : nullptr;
}

void AllocatorHistory::add(AllocatorEvent event) {
  Shared& shared = shared_history();
  HistorySettings settings;
  {
    std::lock_guard lock(shared.mutex);
    settings = shared.settings;
    event.label = shared.label;
  }
  if (!settings.events || settings.most_events == 0 || settings.skips[static_cast<int>(event.action)]) return;
  if (settings.sites < HistorySettings::Sites::allocations) event.site = nullptr;
  event.time = std::chrono::duration_cast<std::chrono::microseconds>(
                   std::chrono::system_clock::now().time_since_epoch())
                   .count();
  // The ring may be longer or shorter than it may be now.
  if (ring_.size() > settings.most_events || (oldest_ != 0 && ring_.size() < settings.most_events)) {
    std::vector<AllocatorEvent> kept = events();
    const std::size_t surplus = kept.size() - std::min(kept.size(), settings.most_events);
    for (std::size_t i = 0; i < surplus; ++i) drop(std::move(kept[i].site));
    kept.erase(kept.begin(), kept.begin() + static_cast<std::ptrdiff_t>(surplus));
    ring_ = std::move(kept);
    oldest_ = 0;
  }
  if (ring_.size() < settings.most_events) {
    ring_.push_back(std::move(event));
    return;
  }
  drop(std::exchange(ring_[oldest_], std::move(event)).site);
  oldest_ = (oldest_ + 1) % ring_.size();
}

std::vector<AllocatorEvent> AllocatorHistory::events() const {
  std::vector<AllocatorEvent> result;
  result.reserve(ring_.size());
  for (std::size_t i = 0; i < ring_.size(); ++i) result.push_back(ring_[(oldest_ + i) % ring_.size()]);
  return result;
}

void AllocatorHistory::clear() {
  for (AllocatorEvent& event : ring_) drop(std::move(event.site));
  ring_.clear();
  oldest_ = 0;
}

}  // namespace vdev
