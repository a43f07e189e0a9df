#include "csrc_device/torch/races/raw_views.hpp"

#include <algorithm>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/fork.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/allocator.hpp"
#include "csrc_device/torch/device_type.hpp"

namespace vdev::races {

struct RawView {
  explicit RawView(const c10::Storage& its) : storage(its.getWeakStorageImpl()) {}

  const c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // keeps its address from being another one's
  std::mutex mutex;                                         // guards what follows
  const Watch* watch = nullptr;  // in whose time the owner was found; null before the first use
  std::optional<sanitizer::Owner> owner;
  std::optional<sanitizer::Gone> gone;
  bool is_used = false;  // since the owner was found
};

namespace {

constexpr std::size_t kMostBeforeCleaning = 256;

struct Views {
  std::mutex mutex;
  std::unordered_map<const c10::StorageImpl*, std::shared_ptr<RawView>> known;
};

Views& views() {
  static base::OnePerProcess<Views> one;
  return one.get();
}

void find_owner(RawView& view, const void* data) {
  Watch& watch = Watch::get();
  const std::lock_guard lock(view.mutex);
  if (view.watch == &watch) return;
  view.watch = &watch;
  view.is_used = false;
  view.owner = watch.detector.owner_of(data);
  view.gone = view.owner ? std::nullopt : watch.detector.gone_at(data);
}

// Whether the program's line has allocated the owner for a result of this call. torch allocates the results
// of some operators before it calls them. No view of such a result can be there yet, so the memory was that
// of the view's owner, which was freed before the view's first use.
bool is_result_of(Site site, const sanitizer::Owner& owner, const std::vector<Touched>& touched) {
  const bool is_written = std::ranges::any_of(touched, [&](const Touched& other) {
    return other.raw == nullptr && other.access.writes && other.access.block == owner.block;
  });
  if (!is_written) return false;
  const PythonLine here = text_of_site(site).line, there = text_of_site(owner.allocated).line;
  return here.number == there.number && here.file == there.file;
}

}  // namespace

std::shared_ptr<RawView> raw_view_of(const c10::Storage& storage) {
  const c10::DataPtr& data = storage.data_ptr();
  if (data.get() == nullptr || data.get_deleter() == device_allocator()->raw_deleter() ||
      storage.device_type() != device_type() || card_of(data.get()) < 0)
    return nullptr;
  Views& all = views();
  const std::lock_guard lock(all.mutex);
  if (all.known.size() >= kMostBeforeCleaning)
    std::erase_if(all.known, [](const auto& entry) { return entry.second->storage.expired(); });
  auto& view = all.known[storage.unsafeGetStorageImpl()];
  if (!view) view = std::make_shared<RawView>(storage);
  find_owner(*view, data.get());
  return view;
}

const void* block_of_raw(const Touched& touched) {
  const std::lock_guard lock(touched.raw->mutex);
  return touched.raw->owner ? touched.raw->owner->block : touched.access.block;
}

std::vector<sanitizer::Race> uses_of_freed_memory(Watch& watch, Lane lane, Site site,
                                                  const std::vector<Touched>& touched) {
  std::vector<sanitizer::Race> found;
  for (std::size_t i = 0; i < touched.size(); ++i) {
    if (touched[i].raw == nullptr) [[likely]]
      continue;
    RawView& view = *touched[i].raw;
    const std::lock_guard lock(view.mutex);
    if (!std::exchange(view.is_used, true) && view.owner && is_result_of(site, *view.owner, touched)) {
      view.owner = std::nullopt;
      view.gone = sanitizer::Gone{};
    }
    if (view.owner) view.gone = watch.detector.end_of(*view.owner);
    if (!view.gone) continue;
    const sanitizer::Action action{lane, 0, site, touched[i].access.writes};
    found.push_back({{}, action, static_cast<std::uint32_t>(i), view.gone->allocated, view.gone->freed});
  }
  return found;
}

}  // namespace vdev::races
