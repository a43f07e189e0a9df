#include "csrc_device/torch/memory/process_sharing.hpp"

#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>

#include "base/fork.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/spoiled_memory.hpp"
#include "csrc_device/torch/allocator.hpp"
#include "csrc_device/torch/gil.hpp"
#include "csrc_device/torch/races/processes.hpp"
#include "csrc_device/torch/streams.hpp"

namespace vdev {
namespace {

/// Finds the storages that are alive by the memory that messages name. Thread-safe.
class KnownStorages {
 public:
  c10::Storage find(const SharedRange& range) {
    std::lock_guard lock(mutex_);
    const auto found = storages_.find(key_of(range));
    if (found == storages_.end()) return {};
    c10::Storage storage(found->second.storage.lock());
    // The owner may have resized its storage since, which gives it other memory.
    const bool same = storage && storage.data() == found->second.data && storage.nbytes() == range.bytes;
    return same ? storage : c10::Storage();
  }

  void add(const SharedRange& range, const c10::Storage& storage) {
    std::lock_guard lock(mutex_);
    if (storages_.size() >= limit_) {
      std::erase_if(storages_, [](const auto& entry) { return entry.second.storage.expired(); });
      limit_ = std::max(kLimit, 2 * storages_.size());
    }
    storages_.insert_or_assign(key_of(range), Known{storage.getWeakStorageImpl(), storage.data()});
  }

 private:
  struct Known {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    const void* data;
  };
  using Key = std::tuple<std::string, std::uint32_t, std::uint32_t, std::uint64_t, std::uint64_t>;
  static constexpr std::size_t kLimit = 128;  // entries before those of dead storages are looked for

  static Key key_of(const SharedRange& range) {
    return {range.memory, range.slot, range.generation, range.offset, range.bytes};
  }

  std::mutex mutex_;
  std::map<Key, Known> storages_;
  std::size_t limit_ = kLimit;
};

KnownStorages& known_storages() {
  static base::OnePerProcess<KnownStorages> one;
  return one.get();
}

c10::Storage make_storage(std::size_t bytes, c10::DataPtr data, bool resizable) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, std::move(data),
                                               device_allocator(), resizable);
}

void give_back(void* last) {
  auto* held = static_cast<HeldRange*>(last);
  if (races::shares_memory()) [[unlikely]]
    races::forget_shared(held->data());
  delete held;
}

}  // namespace

SharedRange share_storage(const c10::Storage& storage) {
  const int index = card_index(storage.device());
  // A lazy copy (copy on write) gets memory of its own, as the receiver may write.
  const auto* data = static_cast<const std::byte*>(storage.mutable_data());
  const std::size_t bytes = data == nullptr ? 0 : storage.nbytes();
  SharedRange range;
  {
    WithoutGil no_gil;
    // The receiver cannot learn what has failed here, so nothing is sent that a failed task should have
    // written.
    card(index).synchronize_before_reading();
    if (SpoiledMemory::any()) {
      if (const auto failure = spoiled_memory().find(data, bytes)) failure->raise();
    }
    range = share_range(index, data, bytes);
  }
  if (bytes != 0) known_storages().add(range, storage);
  return range;
}

c10::Storage receive_storage(const SharedRange& range) {
  if (range.bytes == 0) return make_storage(0, allocate_on(card_of_range(range), 0), true);
  if (auto known = known_storages().find(range)) {
    decline_range(range);  // the storage holds the memory already
    return known;
  }
  WithoutGil no_gil;
  auto held = receive_range(range);
  std::byte* data = held->data();
  const auto device = device_of(held->card());
  c10::DataPtr pointer(data, held.release(), &give_back, device);
  auto storage = make_storage(range.bytes, std::move(pointer), false);
  known_storages().add(range, storage);
  return storage;
}

}  // namespace vdev
