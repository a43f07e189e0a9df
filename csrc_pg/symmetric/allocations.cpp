#include "csrc_pg/symmetric/allocations.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include "csrc_device/runtime/activity.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/spoiled_memory.hpp"
#include "csrc_device/torch/allocator.hpp"
#include "csrc_device/torch/device_type.hpp"
#include "csrc_pg/symmetric/meeting.hpp"

namespace vccl::symmetric {
namespace {

/// Zeroes a block. It was handed out for the stream of the task, which may use it freely.
class Zero final : public vdev::TaskBody {
 public:
  Zero(void* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
  void run() override { std::memset(data_, 0, bytes_); }
  void give_up(const vdev::FailurePtr& failure) override {
    vdev::spoiled_memory().spoil(data_, bytes_, failure);
  }

 private:
  void* const data_;
  const std::size_t bytes_;
};

}  // namespace

Allocations& allocations() {
  static auto* one = new Allocations;
  return *one;
}

void* Allocations::alloc(int card, std::size_t bytes, const std::optional<std::string>& group) {
  // Every allocation has an address of its own, by which it is found.
  const std::size_t taken = std::max<std::size_t>(bytes, 1);
  auto memory = vdev::allocate_on(card, taken);
  void* data = memory.get();
  const vdev::ActivityScope activity(
      [] { return vdev::ActivityLabel{vdev::ActivityKind::kCopy, "Memset (Device)"}; });
  vdev::current_stream(card)->enqueue(std::make_shared<Zero>(data, taken), vdev::Start::kByWaiter,
                                      vdev::Waits::kNever);
  std::lock_guard lock(mutex_);
  blocks_.insert_or_assign(data, Block{card, bytes, std::move(memory), group, {}});
  return data;
}

void Allocations::free(void* data) {
  forget(data);
}

void Allocations::forget(void* data) {
  std::unordered_map<void*, Block>::node_type gone;  // destroyed without the lock: a handle waits for streams
  std::lock_guard lock(mutex_);
  gone = blocks_.extract(data);
}

std::size_t Allocations::size_of(void* data) {
  std::lock_guard lock(mutex_);
  const auto* block = find(data);
  TORCH_CHECK(block != nullptr, "no symmetric memory begins at ", data);
  return block->bytes;
}

bool Allocations::has(void* data) {
  std::lock_guard lock(mutex_);
  return find(data) != nullptr;
}

Allocations::Block* Allocations::find(void* data) {
  if (const auto found = blocks_.find(data); found != blocks_.end()) return &found->second;
  if (pools_.empty() || data == nullptr) return nullptr;
  const int card = vdev::card_of(data);
  if (card < 0) return nullptr;
  auto& allocator = vdev::card(card).allocator();
  const auto* bytes = static_cast<const std::byte*>(data);
  const auto pool = std::make_pair(card, allocator.pool_of(bytes));
  if (std::find(pools_.begin(), pools_.end(), pool) == pools_.end()) return nullptr;
  return &blocks_.insert_or_assign(data, Block{card, allocator.size_of(bytes), {}, {}, {}}).first->second;
}

void Allocations::add_pool(int card, vdev::PoolNumber pool) {
  {
    std::lock_guard lock(mutex_);
    pools_.emplace_back(card, pool);
  }
  // The tensors of a pool free their blocks without this object, which has to forget them.
  vdev::watch_frees([](void* block) { allocations().forget(block); });
}

c10::intrusive_ptr<Handle> Allocations::rendezvous(void* data, const std::optional<std::string>& group) {
  std::optional<std::string> name = group;
  int card = -1;
  std::size_t bytes = 0;
  {
    std::lock_guard lock(mutex_);
    const auto* block = find(data);
    if (block == nullptr) return {};
    if (!name) name = block->group;
    card = block->card;
    bytes = block->bytes;
  }
  TORCH_CHECK(name, "rendezvous(): no group was given, neither now nor when the memory was allocated");
  const auto members = group_of(*name);
  c10::intrusive_ptr<Handle> old;  // destroyed without the lock
  {
    std::lock_guard lock(mutex_);
    auto& handles = find(data)->handles;
    if (const auto found = handles.find(*name); found != handles.end()) {
      if (found->second->is_of(*members)) return found->second;
      old = std::move(found->second);
      handles.erase(found);
    }
  }
  const auto pad_bytes = c10d::symmetric_memory::get_signal_pad_size();
  auto handle = c10::make_intrusive<Handle>(
      *members, card, meet(*members, card, static_cast<std::byte*>(data), bytes, pad_bytes));
  std::lock_guard lock(mutex_);
  if (auto* block = find(data)) block->handles.insert_or_assign(*name, handle);
  return handle;
}

c10::intrusive_ptr<Handle> Allocations::handle_with_pad(const void* word) {
  std::lock_guard lock(mutex_);
  for (const auto& [data, block] : blocks_) {
    for (const auto& [name, handle] : block.handles) {
      const auto& connection = *handle->connection();
      const auto* pad = connection.peers()[static_cast<std::size_t>(handle->get_rank())].words();
      if (word >= pad && word < pad + connection.pad_bytes()) return handle;
    }
  }
  return {};
}

c10::intrusive_ptr<ProcessGroupVccl> group_of(const std::string& name) {
  const auto group = c10d::resolve_process_group(name);
  auto backend =
      c10::dynamic_intrusive_pointer_cast<ProcessGroupVccl>(group->getBackend(vdev::device_type()));
  TORCH_CHECK_VALUE(backend, "The cards of group ", name, " are served by the backend ",
                    group->getBackend(vdev::device_type())->getBackendName(),
                    ", and symmetric memory of cards needs vccl");
  return backend;
}

c10::intrusive_ptr<Handle> handle_of(const at::Tensor& tensor, const std::string& group,
                                     const char* operation, const char* argument) {
  auto handle = allocations().rendezvous(tensor.storage().data_ptr().get(), group);
  TORCH_CHECK(handle, operation, ": ", argument,
              " must be allocated with empty_strided_p2p() or symm_mem.empty(), or from get_mem_pool()");
  return handle;
}

}  // namespace vccl::symmetric
