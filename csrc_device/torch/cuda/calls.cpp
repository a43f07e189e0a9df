// What programs compiled from CUDA C++ call: include/vccl/kernels.hpp. It is written in terms of torch's own
// interfaces, so that the race detector, failures and captures see these calls as those of torch.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/allocator.hpp"
#include "csrc_device/torch/facts/capability.hpp"
#include "csrc_device/torch/gil.hpp"
#include "csrc_device/torch/streams.hpp"
#include "csrc_device/torch/tasks/launch_kernel.hpp"
#include "include/vccl/kernels.hpp"

namespace vdev::cuda {
namespace {

c10::impl::VirtualGuardImpl guard() {
  return c10::impl::VirtualGuardImpl(device_type());
}

// CUDA's names for the default stream, and for that of the calling thread, which is the same in torch.
bool is_default(const void* handle) {
  return reinterpret_cast<std::uintptr_t>(handle) <= 2;
}

c10::Stream stream_of(void* handle) {
  const int index = vdev::current_card();
  if (is_default(handle)) return c10::Stream(c10::Stream::DEFAULT, device_of(index));
  return to_torch(*card(index).stream_at(reinterpret_cast<std::uintptr_t>(handle)));
}

void* handle_of(const c10::Stream& stream) {
  return stream.id() == 0 ? nullptr : from_torch(stream).get();
}

// Memory of allocate().
class Allocations {
 public:
  void* add(c10::DataPtr data) {
    void* const address = data.get();
    const std::lock_guard lock(mutex_);
    alive_.insert_or_assign(address, std::move(data));
    return address;
  }
  c10::DataPtr take(void* address) {
    const std::lock_guard lock(mutex_);
    auto node = alive_.extract(address);
    return node.empty() ? c10::DataPtr() : std::move(node.mapped());
  }

 private:
  std::mutex mutex_;
  std::unordered_map<void*, c10::DataPtr> alive_;
};

// Never destroyed: a program may free memory in the destructor of a static object.
Allocations& allocations() {
  static auto* const all = new Allocations;
  return *all;
}

at::Tensor bytes_at(const void* memory, std::size_t bytes) {
  const int index = vdev::card_of(memory);
  const at::Device device = index < 0 ? at::Device(at::kCPU) : device_of(index);
  return at::for_blob(const_cast<void*>(memory), {static_cast<std::int64_t>(bytes)})
      .options(at::TensorOptions(at::kByte).device(device))
      .target_device(device)
      .make_tensor();
}

}  // namespace

void launch(const char* name, void* stream, const Kernel& kernel) {
  const std::shared_ptr<void> data(kernel.data, kernel.drop);
  const c10::StreamGuard on(stream_of(stream));
  const WithoutGil no_gil;
  launch_unknown_kernel(name, vdev::current_card(), [data, run = kernel.run] { run(data.get()); });
}

void run_on_cores(int most, void (*part)(void*), void* data) {
  const int threads = std::min(most, at::get_num_threads());
  if (threads <= 1) return part(data);
  at::parallel_for(0, threads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (; begin < end; ++begin) part(data);
  });
}

int card_count() {
  return vdev::card_count();
}

int current_card() {
  return vdev::current_card();
}

void set_current_card(int card) {
  guard().setDevice(device_of(card));
}

Figures figures(int index) {
  Card& of = card(index);
  const CardProperties& known = of.properties();
  Figures result{};
  known.name.copy(result.name, sizeof result.name - 1);
  result.memory = known.total_memory;
  result.free_memory = device_allocator()->getMemoryInfo(static_cast<c10::DeviceIndex>(index)).first;
  result.multiprocessors = known.multi_processor_count;
  const Capability shown = capability_of(of);
  result.major = shown.major;
  result.minor = shown.minor;
  return result;
}

void* allocate(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  const WithoutGil no_gil;
  return allocations().add(allocate_on(vdev::current_card(), bytes));
}

bool release(void* memory) {
  if (memory == nullptr) return true;
  const c10::DataPtr data = allocations().take(memory);
  if (!data) return false;
  const WithoutGil no_gil;
  drain_used_cards();
  return true;
}

void copy(void* to, const void* from, std::size_t bytes, void* stream, bool waits) {
  const c10::Stream on = stream_of(stream);
  const c10::StreamGuard current(on);
  const WithoutGil no_gil;
  if (bytes != 0) {
    const at::NoGradGuard no_grad;
    bytes_at(to, bytes).copy_(bytes_at(from, bytes), /*non_blocking=*/true);
  }
  if (waits) guard().synchronizeStream(on);
}

void fill(void* to, int byte, std::size_t bytes, void* stream) {
  if (bytes == 0) return;
  const at::NoGradGuard no_grad;
  const c10::StreamGuard on(stream_of(stream));
  const WithoutGil no_gil;
  bytes_at(to, bytes).fill_(static_cast<std::uint8_t>(byte));
}

void* current_stream() {
  return handle_of(guard().getStream(device_of(vdev::current_card())));
}

void* stream_pointer(int index, long id) {
  return id == 0 ? nullptr : card(index).stream(id).get();
}

void* pool_stream(int priority) {
  return card(vdev::current_card()).pool_stream(priority).get();
}

void synchronize(void* stream) {
  const WithoutGil no_gil;
  guard().synchronizeStream(stream_of(stream));
}

void synchronize_card() {
  const WithoutGil no_gil;
  vdev::synchronize_card(vdev::current_card());
}

bool is_idle(void* stream) {
  return guard().queryStream(stream_of(stream));
}

class Event {
 public:
  explicit Event(bool has_time)
      : flag_(has_time ? c10::EventFlag::BACKEND_DEFAULT : c10::EventFlag::PYTORCH_DEFAULT) {}
  ~Event() {
    if (recorded) guard().destroyEvent(recorded, card);
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record_on(const c10::Stream& stream) {
    guard().record(&recorded, stream, stream.device_index(), flag_);
    card = stream.device_index();
  }

  void* recorded = nullptr;
  c10::DeviceIndex card = 0;

 private:
  const c10::EventFlag flag_;
};

Event* make_event(bool has_time) {
  return new Event(has_time);
}

void forget(Event* event) {
  delete event;
}

void record(Event& event, void* stream) {
  event.record_on(stream_of(stream));
}

void wait(void* stream, const Event& event) {
  if (event.recorded) guard().block(event.recorded, stream_of(stream));
}

void synchronize(const Event& event) {
  const WithoutGil no_gil;
  if (event.recorded) guard().synchronizeEvent(event.recorded);
}

bool is_reached(const Event& event) {
  return event.recorded == nullptr || guard().queryEvent(event.recorded);
}

double milliseconds(const Event& begin, const Event& end) {
  return guard().elapsedTime(begin.recorded, end.recorded, begin.card);
}

}  // namespace vdev::cuda
