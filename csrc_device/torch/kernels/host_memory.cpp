#include "csrc_device/torch/kernels/host_memory.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <atomic>
#include <cstddef>
#include <map>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "base/fork.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/kernels/argument_tensors.hpp"
#include "csrc_device/torch/kernels/tensor_parts.hpp"
#include "csrc_device/torch/races/state.hpp"

namespace vdev::races {
namespace {

/// Holds the storages that are followed, by the first byte of their memory. Another storage over a part of
/// the same memory, such as one that numpy has made, is followed with them. A storage that is gone leaves its
/// memory to others, which are followed anew if they are. Thread-safe.
class Followed {
 public:
  /// Returns whether the memory was not followed before.
  bool add(const at::Tensor& tensor) {
    const std::lock_guard lock(mutex_);
    if (find(tensor) != nullptr) return false;
    if (storages_.size() >= limit_) {
      std::erase_if(storages_, [](const auto& entry) { return entry.second.storage.expired(); });
      limit_ = std::max(kLimit, 2 * storages_.size());
    }
    const auto& storage = tensor.storage();
    storages_.insert_or_assign(static_cast<const std::byte*>(storage.data()),
                               Entry{WeakStorage(storage.getWeakStorageImpl()), storage.nbytes()});
    any_.store(true, std::memory_order_relaxed);
    return true;
  }
  /// Returns the first byte of the followed memory that the tensor lies in, or null.
  const void* block_of(const at::Tensor& tensor) {
    // Relaxed: a thread that is about to use memory which another one begins to follow races with that
    // anyway.
    if (!any_.load(std::memory_order_relaxed) || !tensor.has_storage()) return nullptr;
    const std::lock_guard lock(mutex_);
    return find(tensor);
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    any_.store(false, std::memory_order_relaxed);
    storages_.clear();
  }

  static Followed& get() {
    static base::OnePerProcess<Followed> one;
    return one.get();
  }

 private:
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
  struct Entry {
    WeakStorage storage;
    std::size_t bytes;
  };
  static constexpr std::size_t kLimit = 1024;

  const void* find(const at::Tensor& tensor) const {
    const auto* data = static_cast<const std::byte*>(tensor.const_data_ptr());
    auto found = storages_.upper_bound(data);
    if (found == storages_.begin()) return nullptr;
    --found;
    const bool inside = data < found->first + found->second.bytes && !found->second.storage.expired();
    return inside ? found->first : nullptr;
  }

  std::atomic<bool> any_{false};
  std::mutex mutex_;
  std::map<const std::byte*, Entry> storages_;
  std::size_t limit_ = kLimit;
};

/// Says what an operator does with its tensors' elements.
struct CpuOperator {
  bool touches_elements = false;
  std::vector<bool> writes;  // for each argument
};

// An operator that has no kernel of the CPU calls others, which are seen themselves. Those that only look at
// a tensor's form, or make another view of it, touch no element.
CpuOperator look_at(const c10::OperatorHandle& op) {
  static const std::unordered_set<std::string> of_form{
      "aten::empty_like",
      "aten::new_empty",
      "aten::new_empty_strided",
      "aten::new_zeros",
      "aten::new_ones",
      "aten::new_full",
      "aten::zeros_like",
      "aten::ones_like",
      "aten::full_like",
      "aten::rand_like",
      "aten::randn_like",
      "aten::randint_like",
      "aten::resize_",
      "aten::resize_as_",
      "aten::unsqueeze_",
      "aten::squeeze_",
      "aten::transpose_",
      "aten::t_",
      "aten::as_strided_",
      "aten::detach_",
      "aten::set_",
      "aten::is_same_size",
      "aten::is_set_to",
      "aten::is_pinned",
      "aten::record_stream",
      "aten::_version",
      "aten::sym_size",
      "aten::sym_stride",
      "aten::sym_numel",
      "aten::sym_storage_offset",
      "aten::_has_compatible_shallow_copy_type",
      // Of sparse and nested tensors. Those that make one keep the tensors that they are given.
      "aten::_nnz",
      "aten::_dimI",
      "aten::_dimV",
      "aten::sparse_dim",
      "aten::dense_dim",
      "aten::is_coalesced",
      "aten::_coalesced_",
      "aten::sparse_resize_",
      "aten::_sparse_coo_tensor_with_dims_and_tensors",
      "aten::sparse_compressed_tensor",
      "aten::_nested_tensor_size",
      "aten::_nested_tensor_strides",
      "aten::_nested_tensor_storage_offsets",
      // Calls copy_, which may be an access of a stream.
      "aten::_to_copy",
  };
  CpuOperator result;
  const auto& schema = op.schema();
  const bool implicit = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
                        !op.hasKernelForDispatchKey(c10::DispatchKey::CPU);
  const bool makes_view = std::ranges::any_of(schema.returns(), [](const c10::Argument& result_argument) {
    return result_argument.alias_info() != nullptr && !result_argument.alias_info()->isWrite();
  });
  // The process group tells of its operations itself.
  const std::string& name = op.operator_name().name;
  const bool of_group = name.starts_with("c10d::") || name.starts_with("_c10d_functional");
  result.touches_elements = !implicit && !makes_view && !of_group && !of_form.contains(name);
  for (const c10::Argument& argument : schema.arguments())
    result.writes.push_back(argument.alias_info() != nullptr && argument.alias_info()->isWrite());
  return result;
}

const CpuOperator& cpu_operator(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<std::string, CpuOperator> known;
  const auto name = c10::toString(op.operator_name());
  auto found = known.find(name);
  if (found == known.end()) found = known.emplace(name, look_at(op)).first;
  return found->second;
}

// Records the operator's accesses to memory that is followed. A copy to or from a card is recorded where it
// is given to a stream.
void look_at_call(const at::RecordFunction& call) {
  if (!is_on() || (Queue::inside_task() && !acts_for_stream())) return;
  std::vector<Touched> touched;
  bool on_card = false;
  const auto inputs = call.inputs();
  std::vector<std::pair<std::size_t, at::Tensor>> found;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    for_each_tensor(inputs[i], [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      on_card = on_card || is_card(tensor.device());
      if (!tensor.is_cpu()) return;
      for_each_dense(tensor, [&](const at::Tensor& dense) {
        if (is_followed(dense)) found.emplace_back(i, dense);
      });
    });
  }
  if (found.empty() || on_card) return;
  const auto name = call.operator_name();
  if (!name) return;
  const auto op = c10::Dispatcher::singleton().findSchema(*name);
  if (!op) return;
  const CpuOperator& its = cpu_operator(*op);
  if (!its.touches_elements) return;
  for (const auto& [argument, tensor] : found)
    touched.push_back(touched_on_host(tensor, argument < its.writes.size() && its.writes[argument]));
  host_access(site_of(name->name.c_str()), touched);
}

// Races are looked for in every operator on the CPU only from the first memory on that is followed.
void watch_operators() {
  static std::once_flag once;
  std::call_once(once, [] {
    at::addGlobalCallback(at::RecordFunctionCallback([](const at::RecordFunction& call) {
                            look_at_call(call);
                            return std::unique_ptr<at::ObserverContext>();
                          })
                              .needsInputs(true)
                              .scopes({at::RecordScope::FUNCTION}));
  });
}

}  // namespace

void follow(const at::Tensor& on_host) {
  if (!on_host.has_storage() || on_host.storage().data() == nullptr) return;
  if (Followed::get().add(on_host)) Watch::get().detector.forget(on_host.storage().data());
  watch_operators();
}

bool is_followed(const at::Tensor& on_host) {
  return on_host.defined() && on_host.is_cpu() && Followed::get().block_of(on_host) != nullptr;
}

Touched touched_on_host(const at::Tensor& tensor, bool writes) {
  Touched touched(tensor, writes);
  touched.access.block = Followed::get().block_of(tensor);
  return touched;
}

void note_pointer_taken(const at::Tensor& on_host, const char* call) {
  for_each_dense(on_host, [&](const at::Tensor& dense) {
    if (is_followed(dense)) host_access(site_of(call), {touched_on_host(dense, false)});
  });
}

void forget_host_memory() {
  Followed::get().clear();
}

}  // namespace vdev::races
