#include "csrc_device/torch/facts/rehearsal.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/List.h>
#include <ATen/core/stack.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>

#include <cstring>
#include <unordered_map>
#include <utility>
#include <vector>

#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/kernels/cpu_view.hpp"
#include "csrc_device/torch/kernels/kernel_call.hpp"
#include "csrc_device/torch/kernels/kernel_scope.hpp"
#include "csrc_device/torch/memory/cpu_allocator.hpp"
#include "csrc_device/torch/torch_version.hpp"

namespace vdev {
namespace {

// A rehearsal takes as long as the call, and the host waits for it.
constexpr std::size_t kMostBytes = std::size_t{64} << 20;

// Makes the zeros. Tensors that share memory share it in the rehearsal, too.
class Props {
 public:
  explicit Props(const OperatorFacts& facts) : facts_(facts) {}

  // Returns false if the arguments are too large, or if one would be written on the host.
  bool replace(torch::jit::Stack& arguments) {
    for (const ArgumentSlot& slot : facts_.slots) {
      c10::IValue& argument = arguments[slot.index];
      if (slot.kind == ArgumentKind::generator) {
        argument = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{0});
      } else if (argument.isTensor()) {
        // Such a call is an error, and a rehearsal must not write to the program's tensor.
        if (slot.written && argument.toTensor().defined() && !is_card(argument.toTensor().device()))
          return false;
        argument = prop(argument.toTensor(), slot, false);
      } else if (argument.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& tensor : argument.toTensorList()) {
          if (slot.written && tensor.defined() && !is_card(tensor.device())) return false;
          list.push_back(prop(tensor, slot, true));
        }
        argument = std::move(list);
      } else if (argument.isOptionalTensorList()) {
        c10::List<std::optional<at::Tensor>> list;
        for (const std::optional<at::Tensor>& tensor : argument.toOptionalTensorList())
          list.push_back(tensor ? std::optional(prop(*tensor, slot, true)) : std::nullopt);
        argument = std::move(list);
      }
    }
    return bytes_ <= kMostBytes;
  }

  ArgumentChanges changes() const {
    ArgumentChanges all;
    for (const auto& [index, of_list, before, now] : written_) {
      if (of_list)
        all.add_of_list(before, now);
      else
        all.add(index, before, now);
    }
    return all;
  }

 private:
  at::Tensor prop(const at::Tensor& tensor, const ArgumentSlot& slot, bool of_list) {
    if (!tensor.defined() || !is_card(tensor.device()) || bytes_ > kMostBytes) return tensor;
    const c10::Storage& memory = storage(tensor.storage());
    const auto make = [&] { return tensor_like(memory, c10::DispatchKey::CPU, tensor); };
    at::Tensor zeros = make();
    if (slot.written) written_.push_back({slot.index, of_list, make(), zeros});
    return zeros;
  }

  const c10::Storage& storage(const c10::Storage& original) {
    const auto [entry, added] = storages_.try_emplace(original.unsafeGetStorageImpl());
    if (added) {
      const std::size_t bytes = original.nbytes();
      bytes_ += bytes;
      auto data = bytes_ > kMostBytes ? c10::DataPtr(nullptr, c10::Device(c10::DeviceType::CPU))
                                      : c10::GetCPUAllocator()->allocate(bytes);
      if (data) std::memset(data.get(), 0, bytes);
      entry->second = c10::Storage(c10::make_intrusive<c10::StorageImpl>(
          c10::StorageImpl::use_byte_size_t(), bytes, std::move(data), c10::GetCPUAllocator(), true));
    }
    return entry->second;
  }

  const OperatorFacts& facts_;
  std::size_t bytes_ = 0;
  std::unordered_map<const c10::StorageImpl*, c10::Storage> storages_;
  struct Written {
    std::size_t index;
    bool of_list;
    at::Tensor before, now;
  };
  std::vector<Written> written_;
};

}  // namespace

KnownCallPtr rehearse(const c10::OperatorHandle& op, const OperatorFacts& facts, c10::DispatchKey kernel,
                      c10::ArrayRef<c10::IValue> arguments, const CallSignature& signature) {
  if (torch_version::breaks_on_zeros(op.operator_name().name)) return nullptr;
  torch::jit::Stack stack(arguments.begin(), arguments.end());
  Props props(facts);
  if (!props.replace(stack)) return nullptr;
  const std::vector<c10::IValue> shown(stack.begin(), stack.end());
  KernelMemory memory(-1);
  memory.keep_log();
  const TaskKernelScope scope{LaunchState::of_thread()};
  UseKernelMemory use(memory);
  try {
    run_kernel(op, kernel, facts.in_float32, stack);
  } catch (const std::exception&) {
    return nullptr;
  }
  return learn_call(signature, facts, shown, stack, memory, props.changes());
}

}  // namespace vdev
