#include "csrc_device/runtime/card.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <iterator>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/cores.hpp"
#include "base/fork.hpp"
#include "base/text.hpp"
#include "csrc_device/runtime/capture.hpp"
#include "csrc_device/runtime/cards/loose_points.hpp"
#include "csrc_device/runtime/environment.hpp"
#include "csrc_device/runtime/memory/usage_table.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/runtime/queues/all_queues.hpp"
#include "csrc_device/runtime/queues/stream_order.hpp"
#include "csrc_device/runtime/schedule.hpp"

namespace vdev {
namespace {

constexpr int kPoolSize = 32;  // streams of each priority, as in CUDA's pool
// Stream ids: 0 is the default stream, 1 to 64 are the pool, and the ids above are those of new_stream().
constexpr std::int64_t kFirstPoolId = 1;
constexpr std::int64_t kFirstNewId = kFirstPoolId + 2 * kPoolSize;

CardProperties make_properties(int index) {
  CardProperties properties;
  properties.name = "vccl virtual card";
  properties.total_memory = environment().memory;
  properties.multi_processor_count = base::UsableCores::of_this_process().count();
  if (const auto* profile = environment().profile) {
    properties.profile = profile;
    properties.name = profile->name;
    properties.multi_processor_count = profile->multiprocessors;
  }
  properties.physical_index = environment().visible.at(static_cast<std::size_t>(index));
  return properties;
}

/// Puts streams of high priority first: a thread that waits for several streams runs their waiting tasks in
/// this order.
void sort_by_priority(std::vector<std::shared_ptr<Stream>>& streams) {
  std::stable_sort(streams.begin(), streams.end(),
                   [](const auto& a, const auto& b) { return a->priority() < b->priority(); });
}

}  // namespace

struct Card::Impl {
  explicit Impl(int i)
      : index(i),
        properties(make_properties(i)),
        arena(base::text("vdev:", i).c_str(), properties.total_memory),
        allocator(arena, i, CardAccount(properties.physical_index)),
        default_stream(std::make_shared<Stream>(i, 0, 0, stream_name(0))) {}

  std::string stream_name(std::int64_t id) const { return base::text("vdev:", index, "/s", id); }
  const std::shared_ptr<Stream>& pooled(int slot);
  std::vector<std::shared_ptr<Stream>> all();
  std::vector<std::shared_ptr<Stream>> program_streams();

  LoosePoints loose_points;
  const int index;
  const CardProperties properties;
  Arena arena;
  CachingAllocator allocator;
  const std::shared_ptr<Stream> default_stream;

  std::mutex mutex;  // guards the members below
  std::array<std::shared_ptr<Stream>, 2 * kPoolSize> pool;
  std::array<unsigned, 2> next_in_pool{};
  std::uint64_t schedules_started = 0;  // as the pool knows
  std::unordered_map<std::int64_t, std::weak_ptr<Stream>> others;
  std::int64_t next_id = kFirstNewId;
};

/// Returns the stream of a slot. Slots 0 to 31 have priority 0, slots 32 to 63 priority -1. The caller holds
/// the lock.
const std::shared_ptr<Stream>& Card::Impl::pooled(int slot) {
  auto& stream = pool[static_cast<std::size_t>(slot)];
  if (!stream) {
    const std::int64_t id = kFirstPoolId + slot;
    stream = std::make_shared<Stream>(index, id, slot < kPoolSize ? 0 : -1, stream_name(id));
  }
  return stream;
}

std::vector<std::shared_ptr<Stream>> Card::Impl::all() {
  std::vector<std::shared_ptr<Stream>> streams{default_stream};
  std::lock_guard lock(mutex);
  for (auto& stream : pool) {
    if (stream) streams.push_back(stream);
  }
  for (auto it = others.begin(); it != others.end();) {
    if (auto stream = it->second.lock()) {
      streams.push_back(std::move(stream));
      ++it;
    } else {
      it = others.erase(it);
    }
  }
  sort_by_priority(streams);
  return streams;
}

Card::Card(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Card::~Card() = default;

int Card::index() const {
  return impl_->index;
}
const CardProperties& Card::properties() const {
  return impl_->properties;
}
Arena& Card::arena() {
  return impl_->arena;
}
CachingAllocator& Card::allocator() {
  return impl_->allocator;
}
std::vector<CardUser> Card::users() const {
  return CardAccount(impl_->properties.physical_index).users();
}
std::shared_ptr<Stream> Card::default_stream() {
  return impl_->default_stream;
}

std::shared_ptr<Stream> Card::pool_stream(int priority, bool* made) {
  const int high = priority < 0;
  std::lock_guard lock(impl_->mutex);
  // Under a schedule a program has the same streams each time: a card waits for them in their order.
  const std::uint64_t started = schedules_started();
  if (std::exchange(impl_->schedules_started, started) != started) impl_->next_in_pool = {};
  const int turn = static_cast<int>(impl_->next_in_pool[static_cast<std::size_t>(high)]++ % kPoolSize);
  const int slot = high * kPoolSize + turn;
  if (made) *made = impl_->pool[static_cast<std::size_t>(slot)] == nullptr;
  return impl_->pooled(slot);
}

std::shared_ptr<Stream> Card::new_stream(int priority, std::string name) {
  std::unique_lock lock(impl_->mutex);
  const std::int64_t id = impl_->next_id++;
  lock.unlock();
  if (name.empty()) name = impl_->stream_name(id);
  auto stream = std::make_shared<Stream>(impl_->index, id, std::clamp(priority, -1, 0), std::move(name));
  lock.lock();
  std::erase_if(impl_->others, [](const auto& entry) { return entry.second.expired(); });
  impl_->others.emplace(id, stream);
  return stream;
}

std::shared_ptr<Stream> Card::stream(std::int64_t id) {
  if (id == 0) return impl_->default_stream;
  std::lock_guard lock(impl_->mutex);
  if (id >= kFirstPoolId && id < kFirstNewId) return impl_->pooled(static_cast<int>(id - kFirstPoolId));
  if (const auto found = impl_->others.find(id); found != impl_->others.end()) {
    if (auto stream = found->second.lock()) return stream;
  }
  throw InvalidArgument(
      base::text("card ", impl_->index, " has no stream ", id, " (was its last reference dropped?)"));
}

std::shared_ptr<Stream> Card::stream_at(std::uintptr_t address) {
  for (auto& stream : impl_->all()) {
    if (reinterpret_cast<std::uintptr_t>(stream.get()) == address) return std::move(stream);
  }
  throw InvalidArgument(base::text("card ", impl_->index, " has no stream at the address ", address,
                                   ": pass the pointer of a stream of this process and card, which is its "
                                   "native_handle, or its cuda_stream in pose"));
}

void Card::synchronize() {
  const std::uint64_t epoch = error_epoch();
  const auto streams = impl_->all();
  for (auto& stream : streams) refuse_captured(*stream, "a synchronisation of the host with the card");
  for (auto& stream : streams) stream->drain();
  const auto raise_failures = [&](const std::vector<Event>& points) {
    FailureList failures;
    for (auto& stream : streams) failures.push_all(stream->queue()->failures());
    for (const Event& point : points) {
      if (auto failure = LoosePoints::failure_of(point)) failures.push(std::move(failure));
    }
    failures.raise_one_for_all(epoch);
  };
  // Before the wait for points, too: a peer may never answer because of what has failed already.
  raise_failures({});
  const auto points = impl_->loose_points.all();
  if (points.empty()) return;
  for (const Event& point : points) point.wait();
  raise_failures(points);
}

void Card::also_wait_for(const Event& point) {
  impl_->loose_points.add(point);
}

std::vector<std::shared_ptr<Stream>> Card::Impl::program_streams() {
  std::vector<std::shared_ptr<Stream>> streams{default_stream};
  std::lock_guard lock(mutex);
  std::ranges::copy_if(pool, std::back_inserter(streams),
                       [](const auto& stream) { return stream != nullptr; });
  sort_by_priority(streams);
  return streams;
}

void Card::drain_program_streams(Captured captured) {
  for (auto& stream : impl_->program_streams()) {
    if (captured == Captured::refuses || !stream->queue()->capture()) stream->drain();
  }
}

void Card::synchronize_before_reading() {
  const std::uint64_t epoch = error_epoch();
  const auto streams = impl_->program_streams();
  for (auto& stream : streams) stream->drain();
  for (auto& stream : streams) stream->queue()->failures().raise_before_reading(epoch);
}

/// Holds the cards made so far. It is never destroyed, because streams and tensors of static objects outlive
/// main().
class Cards {
 public:
  static Cards& instance() {
    static auto* cards = new Cards;
    return *cards;
  }

  /// Returns the card, or null if it was never used. In a forked child, this may be the parent's card.
  Card* find(int index) const noexcept {
    if (index < 0 || index >= kMostCards) return nullptr;
    // The acquire load pairs with the release store in make(), so that the Card is complete.
    return table_[static_cast<std::size_t>(index)].load(std::memory_order_acquire);
  }

  Card& make(int index) {
    std::lock_guard lock(mutex_);
    if (Card* made = find(index)) return *made;
    generation_.store(base::fork_generation(), std::memory_order_relaxed);
    auto* made = new Card(std::make_unique<Card::Impl>(index));
    table_[static_cast<std::size_t>(index)].store(made, std::memory_order_release);
    used_.store(true, std::memory_order_release);
    return *made;
  }

  bool used() const noexcept { return used_.load(std::memory_order_acquire); }
  bool inherited() const noexcept {
    return used() && generation_.load(std::memory_order_relaxed) != base::fork_generation();
  }

 private:
  std::mutex mutex_;
  std::array<std::atomic<Card*>, kMostCards> table_{};
  std::atomic<bool> used_{false};
  std::atomic<int> generation_{0};  // the fork generation in which the cards were made
};

namespace {

struct ThreadState {
  int card = 0;
  std::array<std::shared_ptr<Stream>, kMostCards> streams;  // null: the default stream
};

ThreadState& thread_state() {
  thread_local ThreadState state;
  return state;
}

// Relaxed: it is set while torch is imported, before other threads use cards.
std::atomic<bool> are_hidden{false};

}  // namespace

void hide_cards() noexcept {
  are_hidden.store(true, std::memory_order_relaxed);
}

void check_card(int index) {
  if (index >= 0 && index < card_count()) return;
  if (are_hidden.load(std::memory_order_relaxed))
    throw InvalidArgument(
        base::text("There are no ", device_name(),
                   " cards, because vccl could not be loaded into torch. `import vccl` says why."));
  const int count = static_cast<int>(environment().visible.size());  // raises the error of a bad variable
  // "The device index is out of range" is what PyTorch's tests of accelerators look for, and "invalid device
  // ordinal" is CUDA's text.
  const char* cudas = pose() == Pose::cuda ? "CUDA error: invalid device ordinal. " : "";
  throw InvalidArgument(base::text(
      cudas, "The device index is out of range (invalid device ordinal): there is no ", device_name(), ":",
      index, ", there are ", count, " ", device_name(), " cards (VDEV_DEVICE_COUNT, VDEV_VISIBLE_DEVICES)."));
}

int card_count() noexcept {
  if (are_hidden.load(std::memory_order_relaxed)) return 0;
  try {
    return static_cast<int>(environment().visible.size());
  } catch (...) {
    return 0;  // card() raises what is wrong with the variable
  }
}

Card& card(int index) {
  auto& cards = Cards::instance();
  if (cards.inherited()) throw BadFork();
  if (Card* made = cards.find(index)) return *made;
  check_card(index);
  return cards.make(index);
}

bool any_card_used() noexcept {
  return Cards::instance().used() && !in_bad_fork();
}
bool card_used(int index) noexcept {
  return Cards::instance().find(index) != nullptr && !in_bad_fork();
}
bool in_bad_fork() noexcept {
  return Cards::instance().inherited();
}

int card_of(const void* p) noexcept {
  const auto& cards = Cards::instance();
  if (!cards.used()) return -1;
  for (int index = 0, count = card_count(); index < count; ++index) {
    if (Card* made = cards.find(index); made && made->arena().contains(p)) return index;
  }
  return -1;
}

int current_card() noexcept {
  return thread_state().card;
}

int set_current_card(int index) {
  check_card(index);
  return std::exchange(thread_state().card, index);
}

std::shared_ptr<Stream> current_stream(int index) {
  Card& c = card(index);
  const auto& set = thread_state().streams[static_cast<std::size_t>(index)];
  return set ? set : c.default_stream();
}

std::int64_t set_current_stream(int index, std::int64_t id) {
  check_card(index);
  auto& set = thread_state().streams[static_cast<std::size_t>(index)];
  const std::int64_t previous = set ? set->id() : 0;
  if (id == previous) return previous;
  // The previous stream's last pointer may be this one. Its destructor runs after the new stream is in place.
  auto old = std::exchange(set, id == 0 ? nullptr : card(index).stream(id));
  return previous;
}

std::int64_t current_stream_id(int index) noexcept {
  if (index < 0 || index >= kMostCards) return 0;
  const auto& set = thread_state().streams[static_cast<std::size_t>(index)];
  return set ? set->id() : 0;
}

void set_kernel_threads(int threads) {
  const int cores = base::UsableCores::of_this_process().count();
  set_task_slots(cores / (environment().machine_ranks * std::max(1, threads)));
}

std::string sharing_problem() {
  return usage_table().problem();
}

void shutdown() noexcept {
  if (in_bad_fork()) return;
  constexpr std::int64_t kBudget = 2'000'000'000;  // ns: a task stuck for longer is left behind
  stop_all_queues(kBudget);
  leave_usage_table();
}

}  // namespace vdev
