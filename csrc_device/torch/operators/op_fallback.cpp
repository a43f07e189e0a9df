// Runs operators without a kernel for vdev: torch's CPU kernel works on the card's memory.
#include "csrc_device/torch/operators/op_fallback.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/allocator.hpp"
#include "csrc_device/torch/checks/sync_debug_mode.hpp"
#include "csrc_device/torch/device/generator.hpp"
#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/facts/call_signature.hpp"
#include "csrc_device/torch/facts/element_waits.hpp"
#include "csrc_device/torch/facts/operator_facts.hpp"
#include "csrc_device/torch/kernels/cpu_view.hpp"
#include "csrc_device/torch/operators/wrong_products.hpp"
#include "csrc_device/torch/registration.hpp"
#include "csrc_device/torch/streams.hpp"
#include "csrc_device/torch/tasks/activity_labels.hpp"
#include "csrc_device/torch/tasks/decision.hpp"
#include "csrc_device/torch/tasks/deferred_call.hpp"
#include "csrc_device/torch/tasks/launch.hpp"
#include "csrc_device/torch/tasks/watched_call.hpp"
#include "faults/faults.hpp"

namespace vdev {
namespace {

using c10::IValue;
using torch::jit::Stack;
using Kind = ArgumentKind;
using Slot = ArgumentSlot;
using Facts = OperatorFacts;

// Pairs the caller's tensor of a written argument with the tensor that the kernel sees.
struct Written {
  std::size_t index;
  bool of_list;
  at::Tensor original;
  at::Tensor shown;
};

std::optional<at::Generator> given_generator(const IValue& argument) {
  return argument.isNone() ? std::nullopt : std::optional(argument.toGenerator());
}

// Rewrites the arguments of one call for the CPU, and its results for the card.
class ShownCall {
 public:
  ShownCall(const Facts& facts, int card, CpuView::Memory memory) : facts_(facts), view_(card, memory) {}

  void show_arguments(IValue* arguments, ArgumentDraw& draw) {
    for (const Slot& slot : facts_.slots) {
      IValue& argument = arguments[slot.index];
      if (slot.written) {
        originals_.emplace_back(slot.index, argument);
      }
      if (argument.isNone() && slot.kind != Kind::generator) {
        continue;
      }
      switch (slot.kind) {
        case Kind::tensor:
          argument = show(argument.toTensor(), slot);
          break;
        case Kind::tensor_list:
          argument = show_list(argument.toTensorList(), slot);
          break;
        case Kind::optional_tensor_list:
          argument = show_optional_list(argument.toOptionalTensorList(), slot);
          break;
        case Kind::device:
          // A result that was asked for on the CPU stays there.
          adopt_results_ = is_card(argument.toDevice());
          argument = c10::Device(c10::DeviceType::CPU);
          break;
        case Kind::generator:
          draw.emplace(slot.index, draw_for(given_generator(argument), view_.card(),
                                            std::max<std::int64_t>(largest_, 1)));
          break;
      }
    }
  }

  void finish(IValue* results) {
    for (const Written& pair : written_) {
      view_.write_back(pair.original, pair.shown);
    }
    for (std::size_t i = 0; i < facts_.returned_argument.size(); ++i) {
      if (facts_.returned_argument[i] >= 0) {
        results[i] = original(facts_.returned_argument[i]);
      } else if (adopt_results_) {
        adopt(results[i]);
      }
    }
  }

  // Returns what the kernel has changed of the written arguments besides elements. Call this before finish().
  ArgumentChanges changes() const {
    ArgumentChanges all;
    for (const Written& pair : written_) {
      if (pair.of_list)
        all.add_of_list(pair.original, pair.shown);
      else
        all.add(pair.index, pair.original, pair.shown);
    }
    return all;
  }

  const IValue& original(int index) const {
    auto found = std::find_if(originals_.begin(), originals_.end(), [&](const auto& entry) {
      return entry.first == static_cast<std::size_t>(index);
    });
    return found->second;
  }

 private:
  at::Tensor show(const at::Tensor& tensor, const Slot& slot, bool of_list = false) {
    at::Tensor shown = view_.show(tensor, slot.allow_cpu);
    if (!tensor.defined()) {
      return shown;
    }
    largest_ = std::max(largest_, tensor.numel());
    if (slot.written) {
      TORCH_CHECK(is_card(tensor.device()),
                  "Expected all tensors to be on the same device, but found at least two devices, ",
                  device_of(view_.card()), " and ", tensor.device(), "!");
      written_.push_back({slot.index, of_list, tensor, shown});
    }
    return shown;
  }

  c10::List<at::Tensor> show_list(const c10::List<at::Tensor>& tensors, const Slot& slot) {
    c10::List<at::Tensor> shown;
    shown.reserve(tensors.size());
    for (const at::Tensor& tensor : tensors) {
      shown.push_back(show(tensor, slot, true));
    }
    return shown;
  }

  c10::List<std::optional<at::Tensor>> show_optional_list(const c10::List<std::optional<at::Tensor>>& tensors,
                                                          const Slot& slot) {
    c10::List<std::optional<at::Tensor>> shown;
    shown.reserve(tensors.size());
    for (std::optional<at::Tensor> tensor : tensors) {
      shown.push_back(tensor.has_value() ? std::optional(show(*tensor, slot, true)) : std::nullopt);
    }
    return shown;
  }

  void adopt(IValue& result) {
    if (result.isTensor()) {
      result = view_.adopt(result.toTensor());
    } else if (result.isTensorList()) {
      c10::List<at::Tensor> adopted;
      for (const at::Tensor& tensor : result.toTensorList()) {
        adopted.push_back(view_.adopt(tensor));
      }
      result = std::move(adopted);
    }
  }

  const Facts& facts_;
  CpuView view_;
  c10::SmallVector<std::pair<std::size_t, IValue>, 4> originals_;
  c10::SmallVector<Written, 4> written_;
  std::int64_t largest_ = 0;
  bool adopt_results_ = true;
};

// Runs the operator's kernel for `key`, which it has and which is one of the CPU's, at its call. Remembers
// what it did if there is a signature.
void run_operator_at_call(const c10::OperatorHandle& op, const Facts& facts, int card, c10::DispatchKey key,
                          Stack& stack, const CallSignature* signature) {
  IValue* arguments = stack.data() + (stack.size() - facts.arguments);
  std::vector<IValue> given, shown;
  if (signature != nullptr) given.assign(arguments, arguments + facts.arguments);
  ShownCall call(facts, card, CpuView::Memory::kept);
  ArgumentDraw draw;
  call.show_arguments(arguments, draw);
  if (draw) arguments[draw->first] = draw->second.generator();
  KernelMemory memory(card);
  if (signature != nullptr) {
    memory.keep_log();
    shown.assign(arguments, arguments + facts.arguments);
  }
  facts.at_calls.fetch_add(1, std::memory_order_relaxed);
  run_at_call(card, op, stack, key, memory);
  const std::size_t first = stack.size() - facts.returned_argument.size();
  const c10::ArrayRef<IValue> results(stack.data() + first, facts.returned_argument.size());
  KnownCallPtr known;
  if (signature != nullptr) known = learn_call(*signature, facts, shown, results, memory, call.changes());
  call.finish(stack.data() + first);
  // An equal call has its arguments resized first, and then does what this one has done.
  if (known && !known->resized.empty())
    learn_call(CallSignature(op, facts, key, given), facts, shown, results, memory, {});
}

// Gives the arguments the sizes that the kernel gave those of an equal call before.
void resize_arguments(const KnownCall& known, c10::ArrayRef<IValue> arguments) {
  const at::AutoDispatchBelowAutograd no_autograd;
  for (const ResizedArgument& resized : known.resized) {
    const at::Tensor& tensor = arguments[resized.index].toTensor();
    at::native::resize_output(tensor, resized.sizes);  // warns where the kernel does
    if (!tensor.strides().equals(resized.strides))
      tensor.unsafeGetTensorImpl()->set_sizes_and_strides(resized.sizes, resized.strides,
                                                          tensor.storage_offset());
  }
}

// Makes `shown`, which a CPU tensor of an equal call before was, show `tensor`. Returns false if it cannot,
// or if the tensor is on another card.
bool show_instead(const at::Tensor& tensor, const at::Tensor& shown, int card) {
  if (!tensor.defined()) return true;
  if (!is_card(tensor.device())) {
    std::memcpy(shown.mutable_data_ptr(), tensor.const_data_ptr(), tensor.element_size());
    return true;
  }
  c10::StorageImpl* original = tensor.storage().unsafeGetStorageImpl();
  void* data = original->mutable_data();
  if (original->data_ptr().get_deleter() != device_allocator()->raw_deleter() ||
      card_of_tensor(tensor) != card)
    return false;
  c10::StorageImpl* storage = shown.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(data, c10::Device(c10::DeviceType::CPU)));
  storage->set_nbytes(original->nbytes());
  return true;
}

// Returns the arguments as CPU tensors of an equal call before, or nothing.
Stack show_in_frame(const Facts& facts, int card, const KnownCall& known, c10::ArrayRef<IValue> arguments,
                    ArgumentDraw& draw) {
  if (!known.has_frames) return {};
  Stack shown = known.frames.take();
  if (shown.empty()) return {};
  auto slot = facts.slots.begin();
  std::int64_t largest = 1, largest_before_generator = 1;
  std::optional<std::size_t> generator;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const IValue& argument = arguments[i];
    if (slot == facts.slots.end() || slot->index != i) {
      shown[i] = argument;  // numbers may differ
      continue;
    }
    if (argument.isTensor()) {
      const at::Tensor& tensor = argument.toTensor();
      if (!show_instead(tensor, shown[i].toTensor(), card)) return {};
      if (tensor.defined()) largest = std::max(largest, tensor.numel());
    } else if (slot->kind == Kind::generator) {
      generator = i;
      largest_before_generator = largest;
    }
    ++slot;
  }
  if (generator)
    draw.emplace(*generator,
                 draw_for(given_generator(arguments[*generator]), card, largest_before_generator));
  return shown;
}

// Returns what the program gets: the arguments that the operator returns, and `fresh` for the other results.
c10::SmallVector<IValue, 4> results_of(const Facts& facts, const KnownCall& known,
                                       c10::ArrayRef<IValue> arguments, DeferredCall::Tensors fresh) {
  c10::SmallVector<IValue, 4> results;
  auto next = fresh.begin();
  for (std::size_t i = 0; i < facts.returned_argument.size(); ++i) {
    if (facts.returned_argument[i] >= 0) {
      results.push_back(arguments[facts.returned_argument[i]]);
    } else if (known.list_sizes[i] < 0) {
      results.emplace_back(std::move(*next++));
    } else {
      const auto size = static_cast<std::size_t>(known.list_sizes[i]);
      results.emplace_back(c10::List<at::Tensor>(c10::ArrayRef<at::Tensor>(next, size)));
      next += known.list_sizes[i];
    }
  }
  return results;
}

void launch_operator(const c10::OperatorHandle& op, const Facts& facts, int card, c10::DispatchKey key,
                     Stack& stack, KnownCallPtr known) {
  const c10::ArrayRef<IValue> arguments(stack.data() + (stack.size() - facts.arguments), facts.arguments);
  ArgumentDraw draw;
  Stack shown = show_in_frame(facts, card, *known, arguments, draw);
  if (shown.empty()) {
    shown = arguments.vec();
    ShownCall(facts, card, CpuView::Memory::borrowed).show_arguments(shown.data(), draw);
  }
  const auto task = std::make_shared<DeferredCall>(op, key, card, known, std::move(shown), std::move(draw));
  auto results = results_of(facts, *known, arguments, task->make_results());
  facts.tasks.fetch_add(1, std::memory_order_relaxed);
  {
    const ActivityScope activity([&] { return label_of(op); });
    launch(card, Task(task));
  }
  // Only now may the arguments go: their memory may be reused behind the task.
  stack.resize(stack.size() - facts.arguments);
  stack.insert(stack.end(), std::make_move_iterator(results.begin()), std::make_move_iterator(results.end()));
}

void run_call(const c10::OperatorHandle& op, c10::DispatchKey key, Stack& stack, bool may_resize = true) {
  const Facts& facts = facts_of(op);
  const c10::ArrayRef<IValue> arguments(stack.data() + (stack.size() - facts.arguments), facts.arguments);
  facts.refuse_as_cuda(key, arguments);
  const int card = find_card(facts, arguments);
  OperatorDecision decision = decide(OperatorCall{op, facts, key, card, arguments});
  if (reports_waiting_calls() && waits_for_elements(facts, arguments)) [[unlikely]]
    report_waiting_call(card);
  if (decision.when == When::as_task)
    return launch_operator(op, facts, card, key, stack, std::move(decision.known));
  if (decision.resizes_first && may_resize) {
    resize_arguments(*decision.known, arguments);
    return run_call(op, key, stack, /*may_resize=*/false);
  }
  const CallSignature* const unknown = decision.unknown ? &*decision.unknown : nullptr;
  run_operator_at_call(op, facts, card, key, stack, unknown);
}

void run_watched_call(const c10::OperatorHandle& op, c10::DispatchKey key, Stack& stack) {
  if (!races::is_on()) [[likely]]
    return run_call(op, key, stack);
  const Facts& facts = facts_of(op);
  const c10::ArrayRef<IValue> arguments(stack.data() + (stack.size() - facts.arguments), facts.arguments);
  WatchedCall watched(facts, find_card(facts, arguments), arguments);
  run_call(op, key, stack);
  watched.returned(stack);
}

void run_on_card_memory(const c10::OperatorHandle& op, c10::DispatchKey key, Stack& stack) {
  run_watched_call(op, key, stack);
  if (vccl::faults::on()) [[unlikely]]
    damage_product(op, stack);
}

void run_on_cpu_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU), "Could not run '", op.operator_name(),
      "' on ", device_name(),
      ": torch has no CPU kernel for it, and the cards have none of their own. Move the "
      "tensors to the CPU and use another operator.");
  run_on_card_memory(op, c10::DispatchKey::CPU, *stack);
}

// Runs a foreach operator. For lists over several devices, it calls the operator's generic form, which goes
// tensor by tensor. For lists on one card, it calls the CPU's form for the whole list, which saves a dispatch
// and the detour of an output for each tensor.
void run_foreach(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const Facts& facts = facts_of(op);
  const IValue* arguments = stack->data() + (stack->size() - facts.arguments);
  int card = -1;
  bool one_card = true;
  const auto look = [&](const at::Tensor& tensor) {
    const int its_card = card_of_tensor(tensor);
    if (its_card < 0) {
      one_card = one_card && (!tensor.defined() || tensor.dim() == 0);
      return;
    }
    one_card = one_card && (card < 0 || card == its_card);
    card = its_card;
  };
  for (const Slot& slot : facts.slots) {
    const IValue& argument = arguments[slot.index];
    if (slot.kind == Kind::tensor && argument.isTensor()) {
      look(argument.toTensor());
    } else if (slot.kind == Kind::tensor_list) {
      for (const at::Tensor& tensor : argument.toTensorList()) {
        look(tensor);
        one_card = one_card && !(slot.written && card_of_tensor(tensor) < 0);
      }
    }
  }
  if (one_card) {
    run_on_cpu_kernel(op, keys, stack);
  } else {
    // That key's entry is the generic (CompositeExplicitAutograd) one.
    op.redispatchBoxed(c10::DispatchKeySet(key_without_kernels()), stack);
  }
}

VDEV_LIBRARY_IMPL(_, dense_key(), m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu_kernel>());
}

// Returns whether the CPU's kernel must be registered for the operator. The dispatcher prefers an operator's
// generic form to the fallback. If the CPU has a kernel, too (native_layer_norm), that kernel must be used,
// or the card would be slower and round differently.
bool prefers_cpu_kernel(const c10::OperatorHandle& op) {
  // The generic form of the convolutions chooses by the device, and knows no fast kernel for a card; on CPU
  // tensors it chooses between oneDNN and torch's own kernels. The generic form of the losses prepares an
  // output, which the CPU's out= form then enlarges for the unreduced values, with a warning to the user.
  static const std::unordered_set<std::string> named{"aten::convolution", "aten::convolution_backward",
                                                     "aten::mse_loss", "aten::smooth_l1_loss"};
  const c10::OperatorName& name = op.operator_name();
  if (name.overload_name.empty() && named.count(name.name) != 0) {
    return true;
  }
  return op.hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
         (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
          op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd));
}

VDEV_LIBRARY_IMPL(aten, dense_key(), m) {
  for_each_aten_operator([&](const c10::OperatorHandle& op, const char* name) {
    const bool is_foreach = op.operator_name().name.rfind("aten::_foreach_", 0) == 0;
    if (op.hasKernelForDispatchKey(dense_key()) || !(is_foreach || prefers_cpu_kernel(op))) {
      return;
    }
    m.impl(name, is_foreach ? torch::CppFunction::makeFromBoxedFunction<&run_foreach>()
                            : torch::CppFunction::makeFromBoxedFunction<&run_on_cpu_kernel>());
  });
}

}  // namespace

void run_on_cpu_kernel_for(c10::DispatchKey key, const c10::OperatorHandle& op, Stack* stack) {
  TORCH_CHECK_NOT_IMPLEMENTED(op.hasComputedKernelForDispatchKey(key), "Could not run '", op.operator_name(),
                              "' on ", device_name(), ": torch has no kernel of ", key,
                              " for it, and the cards run the CPU's kernels. Use to_dense(), "
                              "dequantize() or to_padded_tensor() first, or another operator.");
  run_on_card_memory(op, key, *stack);
}

void for_each_aten_operator(c10::function_ref<void(const c10::OperatorHandle&, const char*)> body) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) {
      continue;
    }
    if (const auto op = dispatcher.findSchema(name)) {
      const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
      body(*op, full.c_str());
    }
  }
}

}  // namespace vdev
