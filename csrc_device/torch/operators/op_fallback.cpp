// Runs operators without a kernel for vdev: torch's CPU kernel works on the card's memory.
#include "csrc_device/torch/operators/op_fallback.hpp"

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/generator.hpp"
#include "csrc_device/torch/operators/cpu_view.hpp"
#include "csrc_device/torch/operators/launch.hpp"
#include "csrc_device/torch/streams.hpp"

namespace vdev {
namespace {

using c10::IValue;
using torch::jit::Stack;

enum class Kind { tensor, tensor_list, optional_tensor_list, device, generator };

// Describes an argument that a CPU kernel must not see as it is.
struct Slot {
  std::size_t index;
  Kind kind;
  bool written;    // the schema marks the argument as written: (a!)
  bool allow_cpu;  // as with CUDA, the argument may be a CPU tensor of any size
};

// Holds what the schema says about an operator, computed once.
struct Facts {
  c10::OperatorName name{"", ""};
  std::size_t arguments = 0;
  std::vector<Slot> slots;
  std::vector<int> returned_argument;  // for each result, the number of the written argument that it is, or
                                       // -1
};

std::optional<Kind> kind_of(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return Kind::tensor;
    case c10::TypeKind::DeviceObjType:
      return Kind::device;
    case c10::TypeKind::GeneratorType:
      return Kind::generator;
    case c10::TypeKind::OptionalType:
      return kind_of(type->expectRef<c10::OptionalType>().getElementType());
    case c10::TypeKind::ListType: {
      const auto& element = type->expectRef<c10::ListType>().getElementType();
      if (element->kind() == c10::TypeKind::TensorType) {
        return Kind::tensor_list;
      }
      if (element->kind() == c10::TypeKind::OptionalType && kind_of(element) == Kind::tensor) {
        return Kind::optional_tensor_list;
      }
      return std::nullopt;
    }
    default:
      return std::nullopt;
  }
}

bool may_be_cpu(const c10::OperatorName& op, const std::string& argument) {
  // The kernel moves index tensors to the data's device, and the host reads lengths.
  return (argument == "indices" && op.name.find("index") != std::string::npos) || argument == "batch_sizes" ||
         argument == "input_lengths" || argument == "target_lengths";
}

std::unique_ptr<Facts> read_schema(const c10::OperatorHandle& op) {
  auto facts = std::make_unique<Facts>();
  const c10::FunctionSchema& schema = op.schema();
  facts->name = op.operator_name();
  facts->arguments = schema.arguments().size();
  for (std::size_t i = 0; i < facts->arguments; ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (auto kind = kind_of(argument.type())) {
      const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
      facts->slots.push_back({i, *kind, written, may_be_cpu(facts->name, argument.name())});
    }
  }
  for (const c10::Argument& result : schema.returns()) {
    int found = -1;
    if (result.alias_info() != nullptr && result.alias_info()->isWrite()) {
      for (const Slot& slot : facts->slots) {
        const auto* alias = schema.arguments()[slot.index].alias_info();
        if (slot.written && alias->beforeSets() == result.alias_info()->beforeSets()) {
          found = static_cast<int>(slot.index);
        }
      }
    }
    facts->returned_argument.push_back(found);
  }
  return facts;
}

const Facts& facts_of(const c10::OperatorHandle& op) {
  static std::mutex mutex;
  static auto& all = *new std::unordered_map<c10::OperatorHandle, std::vector<std::unique_ptr<Facts>>>();
  thread_local std::unordered_map<c10::OperatorHandle, const Facts*> known;
  const Facts*& entry = known[op];
  // The name is compared because an operator that was removed from the dispatcher (torch.library in tests)
  // may leave its address to another operator.
  if (entry != nullptr && entry->name == op.operator_name()) [[likely]] {
    return *entry;
  }
  std::lock_guard lock(mutex);
  auto& versions = all[op];
  if (versions.empty() || !(versions.back()->name == op.operator_name())) {
    versions.push_back(read_schema(op));
  }
  entry = versions.back().get();
  return *entry;
}

// Pairs the caller's tensor of a written argument with the tensor that the kernel sees.
struct Written {
  at::Tensor original;
  at::Tensor shown;
};

int find_card(const Facts& facts, c10::ArrayRef<IValue> arguments) {
  int card = -1;
  for (const Slot& slot : facts.slots) {
    const IValue& argument = arguments[slot.index];
    if (argument.isNone()) {
      continue;
    }
    if (slot.kind == Kind::tensor) {
      card = card_of_tensor(argument.toTensor());
    } else if (slot.kind == Kind::tensor_list) {
      for (const at::Tensor& tensor : argument.toTensorList()) {
        card = std::max(card, card_of_tensor(tensor));
      }
    } else if (slot.kind == Kind::device && is_card(argument.toDevice())) {
      card = card_index(argument.toDevice());
    }
    if (card >= 0) {
      return card;
    }
  }
  return current_card();
}

// Rewrites the arguments of one call for the CPU, and its results for the card.
class Call {
 public:
  Call(const Facts& facts, c10::ArrayRef<IValue> arguments)
      : facts_(facts), view_(find_card(facts, arguments)) {}

  int card() const { return view_.card(); }

  void show_arguments(IValue* arguments) {
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
          argument =
              cpu_generator_for(argument.isNone() ? std::nullopt : std::optional(argument.toGenerator()),
                                card(), std::max<std::int64_t>(largest_, 1));
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

  const IValue& original(int index) const {
    auto found = std::find_if(originals_.begin(), originals_.end(), [&](const auto& entry) {
      return entry.first == static_cast<std::size_t>(index);
    });
    return found->second;
  }

 private:
  at::Tensor show(const at::Tensor& tensor, const Slot& slot) {
    at::Tensor shown = view_.show(tensor, slot.allow_cpu);
    if (!tensor.defined()) {
      return shown;
    }
    largest_ = std::max(largest_, tensor.numel());
    if (slot.written) {
      TORCH_CHECK(is_card(tensor.device()),
                  "Expected all tensors to be on the same device, but found at least two devices, ",
                  device_of(card()), " and ", tensor.device(), "!");
      written_.push_back({tensor, shown});
    }
    return shown;
  }

  c10::List<at::Tensor> show_list(const c10::List<at::Tensor>& tensors, const Slot& slot) {
    c10::List<at::Tensor> shown;
    shown.reserve(tensors.size());
    for (const at::Tensor& tensor : tensors) {
      shown.push_back(show(tensor, slot));
    }
    return shown;
  }

  c10::List<std::optional<at::Tensor>> show_optional_list(const c10::List<std::optional<at::Tensor>>& tensors,
                                                          const Slot& slot) {
    c10::List<std::optional<at::Tensor>> shown;
    shown.reserve(tensors.size());
    for (std::optional<at::Tensor> tensor : tensors) {
      shown.push_back(tensor.has_value() ? std::optional(show(*tensor, slot)) : std::nullopt);
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

// Runs the operator's kernel for `key`, which it has and which is one of the CPU's.
void run_on_card_memory(const c10::OperatorHandle& op, c10::DispatchKey key, Stack& stack) {
  const Facts& facts = facts_of(op);
  IValue* arguments = stack.data() + (stack.size() - facts.arguments);
  Call call(facts, c10::ArrayRef<IValue>(arguments, facts.arguments));
  call.show_arguments(arguments);
  launch(call.card(), op, stack, key);
  call.finish(stack.data() + (stack.size() - facts.returned_argument.size()));
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

void run_on_sparse_cpu_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  TORCH_CHECK_NOT_IMPLEMENTED(op.hasComputedKernelForDispatchKey(c10::DispatchKey::SparseCPU),
                              "Could not run '", op.operator_name(), "' on sparse tensors of ", device_name(),
                              ": torch has no sparse CPU kernel for it.");
  run_on_card_memory(op, c10::DispatchKey::SparseCPU, *stack);
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
