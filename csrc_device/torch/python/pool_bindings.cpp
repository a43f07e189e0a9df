// Memory pools, memory without a tensor, and figures that torch.accelerator lacks, for Python.
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <exception>
#include <unordered_set>

#include "csrc_device/runtime/capture.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/allocator.hpp"
#include "csrc_device/torch/errors.hpp"
#include "csrc_device/torch/gil.hpp"
#include "csrc_device/torch/memory/host_allocator.hpp"

namespace py = pybind11;

namespace vdev {
namespace {

/// Owns a private pool of the card that was current when it was made. Its memory goes with it, but for the
/// blocks of live tensors, whose memory can be returned once they are freed.
class MemPool {
 public:
  MemPool(bool use_on_oom, bool no_split) : card_(current_card()), number_(new_private_pool()) {
    card(card_).allocator().retain_pool(number_, {.use_on_oom = use_on_oom, .no_split = no_split});
  }
  ~MemPool() {
    if (in_bad_fork()) return;
    const WithoutGil no_gil;  // this waits for streams
    auto& allocator = card(card_).allocator();
    allocator.release_pool(number_);
    try {
      allocator.empty_cache(number_);
    } catch (const std::exception& error) {
      TORCH_WARN("The memory of a pool was not returned: ", error.what());
    }
  }
  MemPool(const MemPool&) = delete;
  MemPool& operator=(const MemPool&) = delete;

  int device() const { return card_; }
  at::MempoolId_t id() const { return {0, number_}; }
  std::size_t use_count() const { return card(card_).allocator().pool_users(number_); }

 private:
  const int card_;
  const PoolNumber number_;
};

// The addresses that raw_allocate() has returned and that were not freed. A tensor's address must not be
// among what is freed: the tensor would free it again. The interpreter's lock guards the set.
std::unordered_set<std::uintptr_t> raw_addresses;

// Returns the address of `bytes` for a stream of the card; 0 for 0 bytes.
std::uintptr_t raw_allocate(int index, std::size_t bytes, std::int64_t stream) {
  auto data = allocate_for(index, bytes, card(index).stream(stream)->queue(), kProgramPool);
  const auto address = reinterpret_cast<std::uintptr_t>(data.get());
  if (address != 0) raw_addresses.insert(address);
  data.release_context();
  return address;
}

void raw_free(std::uintptr_t address) {
  if (address == 0) return;
  TORCH_CHECK(raw_addresses.erase(address) == 1, "caching_allocator_delete: ", address,
              " is no address that caching_allocator_alloc has returned, or was freed before");
  auto* block = reinterpret_cast<std::byte*>(address);
  const int index = card_of(block);
  const WithoutGil no_gil;
  card(index).allocator().free(block);
}

// Takes a figure of the cards' allocator, or one of torch's.
template <class Figure>
py::dict to_dict(const Figure& figure) {
  py::dict result;
  result["current"] = figure.current;
  result["peak"] = figure.peak;
  result["allocated"] = figure.allocated;
  result["freed"] = figure.freed;
  return result;
}

py::dict with_pools(const AllocatorStats::Figures& figures) {
  py::dict result;
  result["all"] = to_dict(figures);
  result["small_pool"] = to_dict(figures.small_pool);
  result["large_pool"] = to_dict(figures.large_pool);
  return result;
}

py::dict further_stats(int index) {
  check_card(index);
  py::dict result, pools;
  if (!card_used(index)) return result;
  const auto& allocator = card(index).allocator();
  for (const auto& [pool, figures] : allocator.reserved_by_private_pool())
    pools[py::make_tuple(0, pool)] = with_pools(figures);
  result["scratch_bytes"] = with_pools(allocator.stats().scratch_bytes);
  result["reserved_bytes_by_private_pools"] = std::move(pools);
  return result;
}

// Takes microseconds.
py::dict to_dict(const c10::CachingAllocator::DurationStat& time) {
  py::dict result;
  result["total"] = time.total;
  result["max"] = time.max;
  result["min"] = time.min;
  result["count"] = time.count;
  result["avg"] = time.count == 0 ? 0 : time.total / time.count;
  return result;
}

// torch.cuda.host_memory_stats() takes this form.
py::dict pinned_memory_stats() {
  const auto stats = pinned_allocator()->get_stats();
  py::dict result;
  result["allocations"] = to_dict(stats.allocations);
  result["allocated_bytes"] = to_dict(stats.allocated_bytes);
  result["active_requests"] = to_dict(stats.active_requests);
  result["active_bytes"] = to_dict(stats.active_bytes);
  result["host_alloc_time"] = to_dict(stats.host_alloc_time);
  result["host_free_time"] = to_dict(stats.host_free_time);
  result["num_host_alloc"] = stats.num_host_alloc;
  result["num_host_free"] = stats.num_host_free;
  return result;
}

}  // namespace
}  // namespace vdev

void init_pool_bindings(py::module_& m) {
  using vdev::card;
  using vdev::MemPool;
  py::class_<MemPool>(m, "MemPool")
      .def(py::init<bool, bool>(), py::arg("use_on_oom") = false, py::arg("no_split") = false)
      .def_property_readonly("device", &MemPool::device)
      .def_property_readonly("id", &MemPool::id)
      .def("use_count", &MemPool::use_count);
  m.def("_retain_pool", [](int index, vdev::PoolNumber pool) { card(index).allocator().retain_pool(pool); });
  m.def("_release_pool",
        [](int index, vdev::PoolNumber pool) { card(index).allocator().release_pool(pool); });
  m.def("_begin_pool", [](int index, vdev::PoolNumber pool) { card(index).allocator().begin_pool(pool); });
  m.def("_end_pool", [](int index, vdev::PoolNumber pool) { card(index).allocator().end_pool(pool); });
  m.def("_raw_allocate", &vdev::raw_allocate, py::arg("index"), py::arg("bytes"), py::arg("stream_id"));
  m.def("_raw_free", &vdev::raw_free, py::arg("address"));
  m.def("_pinned_memory_stats", &vdev::pinned_memory_stats,
        "Figures of pinned host memory: {name: {current, peak, allocated, freed}}, two times in "
        "microseconds, and two counts.");
  m.def("_reset_peak_pinned_memory_stats", [] { vdev::pinned_allocator()->reset_peak_stats(); });
  m.def("_reset_accumulated_pinned_memory_stats",
        [] { vdev::pinned_allocator()->reset_accumulated_stats(); });
  m.def("_further_memory_stats", &vdev::further_stats, py::arg("index"));
}
