#include "csrc_device/torch/allocator.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/runtime/spoiled_memory.hpp"
#include "csrc_device/torch/checks/gpu_trace.hpp"
#include "csrc_device/torch/errors.hpp"
#include "csrc_device/torch/gil.hpp"
#include "csrc_device/torch/memory/allocator_settings.hpp"
#include "csrc_device/torch/races/watch.hpp"
#include "csrc_device/torch/registration.hpp"
#include "csrc_device/torch/streams.hpp"
#include "csrc_device/torch/torch_version.hpp"

namespace vdev {
namespace {

void report_to_profiler(Card& card, void* block, std::int64_t bytes) {
  const auto stats = card.allocator().stats();
  c10::reportMemoryUsageToProfiler(block, bytes, static_cast<std::size_t>(stats.allocated_bytes.current),
                                   static_cast<std::size_t>(stats.reserved_bytes.current),
                                   device_of(card.index()));
}

// Set once, before the memory that the observer wants to know of. The release store pairs with the load
// below.
std::atomic<FreeObserver> free_observer{nullptr};

// Frees a block; it is the deleter of every DataPtr of card memory. Context and data are the same pointer.
void delete_block(void* block) {
  // A forked child must not free the parent's memory, and the parent's allocator may be locked for ever
  // there.
  if (block == nullptr || in_bad_fork()) {
    return;
  }
  auto& owner = card(card_of(block));
  auto* bytes = static_cast<std::byte*>(block);
  const auto size = c10::memoryProfilingEnabled() ? owner.allocator().size_of(bytes) : 0;
  if (traces_calls() && !owner.allocator().is_scratch(bytes)) [[unlikely]]
    report_traced_call(TracedCall::memory_deallocation, traced_name(block));
  if (races::is_on()) [[unlikely]]
    races::freed(block);
  if (const auto observer = free_observer.load(std::memory_order_acquire)) [[unlikely]]
    observer(block);
  owner.allocator().free(bytes);
  if (size != 0) {
    report_to_profiler(owner, block, -static_cast<std::int64_t>(size));
  }
}

c10::CachingAllocator::Stat to_torch(const AllocatorStats::Figure& figure) {
  c10::CachingAllocator::Stat stat;
  stat.current = figure.current;
  stat.peak = figure.peak;
  stat.allocated = figure.allocated;
  stat.freed = figure.freed;
  return stat;
}

c10::CachingAllocator::StatArray to_torch(const AllocatorStats::Figures& figures) {
  using c10::CachingAllocator::StatType;
  c10::CachingAllocator::StatArray stats;
  const auto fill = [&](StatType type, const AllocatorStats::Figure& figure) {
    stats[static_cast<std::size_t>(type)] = to_torch(figure);
  };
  fill(StatType::AGGREGATE, figures);
  fill(StatType::SMALL_POOL, figures.small_pool);
  fill(StatType::LARGE_POOL, figures.large_pool);
  return stats;
}

class DeviceAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override { return allocate_on(current_card(), bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_block; }

  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    // The source was written on the current stream of its card. Every stream sees the copy afterwards,
    // because the call waits.
    WithoutGil no_gil;
    current_stream(card_of(source))->synchronize_before_reading();
    std::memcpy(target, source, bytes);
    if (SpoiledMemory::any()) spoiled_memory().copied(target, source, bytes);
  }

  bool initialized() override { return any_card_used(); }

  void emptyCache(c10::MempoolId_t pool) override {
    WithoutGil no_gil;  // this waits for streams
    const auto number =
        pool == c10::MempoolId_t(0, 0) ? std::nullopt : std::optional<PoolNumber>(pool.second);
    for_used_cards([&](Card& card) { card.allocator().empty_cache(number); });
    if (races::is_on()) [[unlikely]]
      races::released();
  }

  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    // As on CUDA, memory that is not the allocator's (a peer's, or another library's buffer) is skipped.
    auto* block = static_cast<std::byte*>(data.get());
    const int owner = block == nullptr ? -1 : card_of(block);
    if (owner >= 0 && card(owner).allocator().size_of(block) != 0) {
      const auto recorded = from_torch(stream);
      card(owner).allocator().record_stream(block, recorded);
      if (races::is_on()) [[unlikely]]
        races::keep_for(block, *recorded);
    }
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    c10::CachingDeviceAllocator::DeviceStats result;
    if (!used(index)) {
      return result;
    }
    const auto stats = card(index).allocator().stats();
    result.allocation = to_torch(stats.allocation);
    result.segment = to_torch(stats.segment);
    result.active = to_torch(stats.active);
    result.inactive_split = to_torch(stats.inactive_split);
    result.allocated_bytes = to_torch(stats.allocated_bytes);
    result.reserved_bytes = to_torch(stats.reserved_bytes);
    result.active_bytes = to_torch(stats.active_bytes);
    result.inactive_split_bytes = to_torch(stats.inactive_split_bytes);
    result.requested_bytes = to_torch(stats.requested_bytes);
    for (const auto& [pool, figures] : card(index).allocator().reserved_by_private_pool())
      torch_version::set_private_pool(result, {0, pool}, to_torch(figures));
    result.oversize_allocations = to_torch(stats.oversize_allocations);
    result.oversize_segments = to_torch(stats.oversize_segments);
    result.num_sync_all_streams = stats.num_sync_all_streams;
    // The type is signed, so CUDA's "no limit", too, is -1.
    result.max_split_size = static_cast<std::int64_t>(allocator_settings().max_split_size);
    result.num_alloc_retries = stats.num_alloc_retries;
    result.num_ooms = stats.num_ooms;
    result.num_device_alloc = stats.segment.allocated;
    result.num_device_free = stats.segment.freed;
    return result;
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override {
    if (used(index)) {
      card(index).allocator().reset_accumulated_stats();
    }
  }
  void resetPeakStats(c10::DeviceIndex index) override {
    if (used(index)) {
      card(index).allocator().reset_peak_stats();
    }
  }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex index) override {
    const auto total = card(index).properties().total_memory;
    return {std::min(card(index).allocator().left(), total), total};  // the arena ends with a whole page
  }

 private:
  // A card that was not used has no figures, and asking for them must not make the card.
  static bool used(int index) {
    check_card(index);
    return card_used(index);
  }

  template <typename Do>
  static void for_used_cards(Do&& what) {
    for (int index = 0; index < card_count(); ++index) {
      if (card_used(index)) {
        what(card(index));
      }
    }
  }
};

void warn_of_unshared_capacity() {
  static const bool warned = [] {
    if (const auto problem = sharing_problem(); !problem.empty()) {
      TORCH_WARN("This process cannot see what other processes use of the memory of its ", device_name(),
                 " cards (", problem, "). Each process has a card's whole capacity for itself.");
    }
    return true;
  }();
  static_cast<void>(warned);
}

struct Observers {
  std::mutex mutex;
  std::vector<OutOfMemoryObserver> all;
};

Observers& out_of_memory_observers() {
  static auto* observers = new Observers;  // outlives every thread
  return *observers;
}

void tell_observers(Card& card, std::size_t asked) {
  // A thread that runs a task may hold up one that holds the GIL, which an observer needs.
  if (Queue::inside_task()) return;
  std::vector<OutOfMemoryObserver> all;
  {
    Observers& observers = out_of_memory_observers();
    const std::lock_guard lock(observers.mutex);
    all = observers.all;
  }
  if (all.empty()) return;
  const auto [free, total] = device_allocator()->getMemoryInfo(static_cast<c10::DeviceIndex>(card.index()));
  for (const auto& observer : all) observer(card.index(), asked, total, free);
}

// The allocator is leaked, because storages outlive static destruction.
DeviceAllocator& the_allocator() {
  static auto& allocator = *new DeviceAllocator;
  return allocator;
}

const Registration allocator_registration([] { c10::SetAllocator(device_type(), &the_allocator()); });

}  // namespace

c10::DeviceAllocator* device_allocator() {
  return &the_allocator();
}

void watch_frees(FreeObserver observer) noexcept {
  free_observer.store(observer, std::memory_order_release);
}

void attach_out_of_memory_observer(OutOfMemoryObserver observer) {
  Observers& observers = out_of_memory_observers();
  const std::lock_guard lock(observers.mutex);
  observers.all.push_back(std::move(observer));
}

c10::DataPtr allocate_on(int index, std::size_t bytes, Asker asker) {
  if (bytes != 0) read_allocator_settings();
  auto memory = allocate_for(index, bytes, current_stream(index)->queue(), kProgramPool, asker);
  if (bytes != 0) warn_of_unshared_capacity();
  return memory;
}

bool goes_with_last_owner(const c10::DataPtr& data) {
  return data.get_context() != nullptr && data.get_deleter() != device_allocator()->raw_deleter();
}

void adopt_memory(int index, const c10::DataPtr& data) {
  auto* block = static_cast<std::byte*>(data.get());
  if (block == nullptr) return;
  CachingAllocator& allocator = card(index).allocator();
  const bool is_told = (traces_calls() || races::is_on()) && allocator.is_scratch(block);
  allocator.adopt(block);
  if (!is_told) [[likely]]
    return;
  trace_call(TracedCall::memory_allocation, data.get());
  if (races::is_on()) races::allocated(block, allocator.size_of(block), *current_stream(index));
}

c10::DataPtr allocate_for(int index, std::size_t bytes, const std::shared_ptr<Queue>& queue, PoolNumber pool,
                          Asker asker) {
  auto& owner = card(index);
  if (bytes == 0) {
    return {nullptr, nullptr, &delete_block, device_of(index)};
  }
  WithoutGil no_gil;
  return with_torch_errors([&]() -> c10::DataPtr {
    std::byte* block = nullptr;
    try {
      block = owner.allocator().allocate(bytes, queue, pool, asker);
    } catch (const OutOfMemory&) {
      tell_observers(owner, bytes);
      throw;
    }
    if (c10::memoryProfilingEnabled()) {
      report_to_profiler(owner, block, static_cast<std::int64_t>(owner.allocator().size_of(block)));
    }
    // What only kernels see is no business of the program's. A result is told of when it is adopted.
    if (asker == Asker::program && pool != kScratchPool) {
      trace_call(TracedCall::memory_allocation, static_cast<void*>(block));
      if (races::is_on()) [[unlikely]]
        races::allocated(block, bytes, *current_stream(index));
    }
    return {block, block, &delete_block, device_of(index)};
  });
}

namespace {

/// Copies what a storage keeps when it gets other memory. The task owns the old memory, whoever allocated it
/// and for whichever stream.
class MoveTask final : public TaskBody {
 public:
  MoveTask(std::shared_ptr<c10::DataPtr> from, void* to, std::size_t bytes)
      : from_(std::move(from)), to_(to), bytes_(bytes) {}
  void run() override {
    std::memcpy(to_, from_->get(), bytes_);
    if (SpoiledMemory::any()) spoiled_memory().copied(to_, from_->get(), bytes_);
  }
  void give_up(const FailurePtr& failure) override { spoiled_memory().spoil(to_, bytes_, failure); }

 private:
  const std::shared_ptr<c10::DataPtr> from_;
  void* const to_;
  const std::size_t bytes_;
};

}  // namespace

void resize_storage(const c10::Storage& storage, std::size_t bytes) {
  TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
  const int index = card_index(storage.device());
  auto memory = allocate_on(index, bytes);
  const auto kept = std::min(bytes, storage.nbytes());
  auto* target = memory.get();
  auto old = std::make_shared<c10::DataPtr>(storage.set_data_ptr(std::move(memory)));
  storage.set_nbytes(bytes);
  if (kept != 0 && old->get() != nullptr) {
    if (races::is_on()) [[unlikely]] {
      using races::Access, races::Touched;
      races::moved(*current_stream(index), races::site_of("aten::resize_"),
                   Touched(Access{.block = old->get(), .memory = {old->get(), kept}}),
                   Touched(Access{.block = target, .memory = {target, kept}, .writes = true}));
    }
    // The new memory is the current stream's. If it is freed before the task has run, only later tasks of the
    // same stream can get it.
    WithoutGil no_gil;  // with VDEV_LAUNCH_BLOCKING=1 this waits
    current_stream(index)->enqueue(Task(std::make_shared<MoveTask>(std::move(old), target, kept)));
  }
}

}  // namespace vdev
