#include "csrc_device/torch/memory/host_allocator.hpp"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/clock.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/environment.hpp"
#include "csrc_device/runtime/host_pages.hpp"
#include "csrc_device/runtime/spoiled_memory.hpp"
#include "csrc_device/torch/memory/allocator_settings.hpp"
#include "csrc_device/torch/memory/registered_memory.hpp"
#include "csrc_device/torch/registration.hpp"
#include "csrc_device/torch/streams.hpp"
#include "csrc_device/torch/torch_version.hpp"

namespace vdev {
namespace {

using torch_version::PinnedLimits;

constexpr std::size_t kAlignment = 4096;  // whole pages: a copy of a block never shares a page with another

struct Block {
  std::byte* data = nullptr;
  std::size_t size = 0;
  std::size_t backed = 0;   // bytes at the beginning that have pages
  std::vector<Event> uses;  // points that must be reached before the memory is reused

  bool busy() const {
    return !std::ranges::all_of(uses, [](const Event& use) { return use.reached(); });
  }
};

void delete_pinned(void* data);

std::size_t whole_pages(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// Returns the size of the block for a request: a power of two, or whole pages above the size that the
/// program has set (pinned_max_round_threshold_mb).
std::size_t pinned_size(std::size_t bytes) {
  if (bytes > PinnedLimits::rounded()) return whole_pages(bytes);
  return std::max(kAlignment, std::bit_ceil(bytes));
}

/// Keeps free blocks by size until empty_cache(), but for those above the size that the program has set
/// (pinned_max_cached_size_mb). One lock is enough, because pinned memory
/// is allocated at most a few times in a training step.
class PinnedAllocator final : public at::HostAllocator {
 public:
  at::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) {
      return {nullptr, nullptr, &delete_pinned, at::DeviceType::CPU};
    }
    read_allocator_settings();
    auto* data = obtain(bytes);
    if (data == nullptr) {
      empty_cache();
      data = obtain(bytes);
    }
    TORCH_CHECK_WITH(OutOfMemoryError, data != nullptr, "Cannot allocate ", pinned_size(bytes),
                     " bytes of pinned host memory. ", explain_missing_pages());
    return {data, data, &delete_pinned, at::DeviceType::CPU};
  }

  void free(void* data) {
    std::lock_guard lock(mutex_);
    auto node = live_.extract(static_cast<std::byte*>(data));
    stats_.active_requests.decrease(1);
    stats_.active_bytes.decrease(node.mapped().size);
    put_aside(std::move(node.mapped()));
  }

  bool record_event(void* ptr, void* ctx, c10::Stream stream) override {
    // The point is recorded before the lock is taken, because recording may take long.
    Event point = from_torch(stream)->record();
    // A graph copies whenever it is replayed, so nobody knows when the last copy has run: as on CUDA, the
    // program keeps the memory for as long as the graph.
    if (point.captured()) {
      return holds(ctx != nullptr ? ctx : ptr);
    }
    std::lock_guard lock(mutex_);
    Block* block = find(ctx != nullptr ? ctx : ptr);
    if (block == nullptr) {
      return false;
    }
    std::erase_if(block->uses, [](const Event& use) { return use.reached(); });
    block->uses.push_back(std::move(point));
    return true;
  }

  bool holds(const void* data) {
    std::lock_guard lock(mutex_);
    return find(data) != nullptr;
  }

  void empty_cache() override {
    std::lock_guard lock(mutex_);
    collect();
    for (auto& [size, list] : free_) {
      for (auto& block : list) unmake(block);
      list.clear();
    }
  }

  at::HostStats get_stats() override {
    std::lock_guard lock(mutex_);
    return stats_;
  }
  void reset_accumulated_stats() override {
    std::lock_guard lock(mutex_);
    for (auto* stat : all_stats()) {
      stat->reset_accumulated();
    }
    for (auto* time : {&stats_.host_alloc_time, &stats_.host_free_time}) time->reset_accumulated();
    stats_.num_host_alloc = stats_.num_host_free = 0;
  }
  void reset_peak_stats() override {
    std::lock_guard lock(mutex_);
    for (auto* stat : all_stats()) {
      stat->reset_peak();
    }
    for (auto* time : {&stats_.host_alloc_time, &stats_.host_free_time}) time->reset_peak();
  }

  at::DeleterFnPtr raw_deleter() const override { return &delete_pinned; }
  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }

 private:
  // Returns the address of a block for the request, or null if the machine does not have the memory.
  std::byte* obtain(std::size_t bytes) {
    // CUDA has no pinned memory for a child of a process that has used a GPU.
    if (pose() == Pose::cuda && in_bad_fork()) throw BadFork();
    const auto size = pinned_size(bytes);
    Block block = unused(size);
    const bool made = block.data == nullptr;
    const auto begin = base::monotonic_ns();
    if (made) block.data = static_cast<std::byte*>(std::aligned_alloc(kAlignment, size));
    // Nobody else knows the block, so its pages are taken without the lock. A request gets no more of them
    // than it needs, because a power of two may be nearly twice that.
    const auto wanted = whole_pages(bytes);
    const bool backed =
        block.data != nullptr &&
        (wanted <= block.backed || back_host_memory(block.data + block.backed, wanted - block.backed));
    const auto end = base::monotonic_ns();
    std::lock_guard lock(mutex_);
    if (!backed) {
      if (made)
        std::free(block.data);
      else
        free_[size].push_back(std::move(block));
      return nullptr;
    }
    block.backed = std::max(block.backed, wanted);
    if (made) count_made(size, (end - begin) / 1000);
    stats_.active_requests.increase(1);
    stats_.active_bytes.increase(size);
    auto* data = block.data;
    live_.emplace(data, std::move(block));
    return data;
  }

  // Returns a free block of that size, or one without memory.
  Block unused(std::size_t size) {
    std::lock_guard lock(mutex_);
    collect();
    Block block{.size = size};
    if (auto& list = free_[size]; !list.empty()) {
      block = std::move(list.back());
      list.pop_back();
    }
    return block;
  }

  void count_made(std::size_t size, std::int64_t microseconds) {
    stats_.allocations.increase(1);
    stats_.allocated_bytes.increase(size);
    stats_.host_alloc_time.increase(microseconds);
    ++stats_.num_host_alloc;
  }

  void unmake(const Block& block) {
    const auto begin = base::monotonic_ns();
    std::free(block.data);
    stats_.host_free_time.increase((base::monotonic_ns() - begin) / 1000);
    stats_.allocations.decrease(1);
    stats_.allocated_bytes.decrease(block.size);
    ++stats_.num_host_free;
  }

  void put_aside(Block block) {
    if (block.busy()) {
      waiting_.push_back(std::move(block));
      return;
    }
    // No task uses the memory any more, and its next owner must not get this one's failure.
    if (SpoiledMemory::any()) spoiled_memory().renew(block.data, block.size);
    if (block.size > PinnedLimits::cached()) {
      unmake(block);
    } else {
      block.uses.clear();
      free_[block.size].push_back(std::move(block));
    }
  }

  // Moves the freed blocks that no stream uses any more to the free lists.
  void collect() {
    std::vector<Block> waiting;
    waiting.swap(waiting_);
    for (auto& block : waiting) {
      put_aside(std::move(block));
    }
  }

  Block* find(const void* data) {
    auto* address = const_cast<std::byte*>(static_cast<const std::byte*>(data));
    auto next = live_.upper_bound(address);
    if (next == live_.begin()) {
      return nullptr;
    }
    auto& block = std::prev(next)->second;
    return address < block.data + block.size ? &block : nullptr;
  }

  std::array<c10::CachingAllocator::Stat*, 4> all_stats() {
    return {&stats_.active_requests, &stats_.active_bytes, &stats_.allocations, &stats_.allocated_bytes};
  }

  std::mutex mutex_;
  std::map<std::byte*, Block> live_;
  std::unordered_map<std::size_t, std::vector<Block>> free_;
  std::vector<Block> waiting_;
  at::HostStats stats_;
};

// The allocator is leaked, because storages outlive static destruction.
PinnedAllocator& the_allocator() {
  static auto& allocator = *new PinnedAllocator;
  return allocator;
}

void delete_pinned(void* data) {
  if (data != nullptr) {
    the_allocator().free(data);
  }
}

const Registration pinned_registration([] { at::setHostAllocator(device_type(), &the_allocator()); });

}  // namespace

at::HostAllocator* pinned_allocator() {
  return &the_allocator();
}

bool is_pinned(const void* data) {
  return data != nullptr && (the_allocator().holds(data) || is_registered(data));
}

}  // namespace vdev
