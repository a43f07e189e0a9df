#include "csrc_device/torch/facts/operator_facts.hpp"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/facts/cuda_refusals.hpp"
#include "csrc_device/torch/kernels/cpu_view.hpp"
#include "csrc_device/torch/kernels/kernel_scope.hpp"
#include "csrc_device/torch/streams.hpp"
#include "csrc_device/torch/torch_version.hpp"

namespace vdev {
namespace {

std::optional<ArgumentKind> kind_of(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return ArgumentKind::tensor;
    case c10::TypeKind::DeviceObjType:
      return ArgumentKind::device;
    case c10::TypeKind::GeneratorType:
      return ArgumentKind::generator;
    case c10::TypeKind::OptionalType:
      return kind_of(type->expectRef<c10::OptionalType>().getElementType());
    case c10::TypeKind::ListType: {
      const auto& element = type->expectRef<c10::ListType>().getElementType();
      if (element->kind() == c10::TypeKind::TensorType) {
        return ArgumentKind::tensor_list;
      }
      if (element->kind() == c10::TypeKind::OptionalType && kind_of(element) == ArgumentKind::tensor) {
        return ArgumentKind::optional_tensor_list;
      }
      return std::nullopt;
    }
    default:
      return std::nullopt;
  }
}

bool may_be_cpu(const c10::OperatorName& op, const std::string& argument) {
  // The kernel moves index tensors to the data's device, and the host reads lengths, sizes and scales.
  if (op.name == "aten::_empty_per_channel_affine_quantized") return true;
  return (argument == "indices" && op.name.find("index") != std::string::npos) || argument == "batch_sizes" ||
         argument == "input_lengths" || argument == "target_lengths" ||
         argument == "cpu_nested_shape_example";
}

bool is_number(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::NumberType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::ComplexType:
      return true;
    case c10::TypeKind::OptionalType:
      return is_number(type->expectRef<c10::OptionalType>().getElementType());
    case c10::TypeKind::ListType:
      return is_number(type->expectRef<c10::ListType>().getElementType());
    default:
      return false;
  }
}

// Returns whether torch says that results depend on elements. An index is looked at in each call: only one of
// Booleans makes the result depend on elements.
bool is_dynamic(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  const bool dynamic = op.hasTag(at::Tag::dynamic_output_shape) ||
                       op.hasTag(at::Tag::data_dependent_output) || torch_version::lacks_dynamic_tag(name);
  return dynamic && name != "aten::index";
}

// Returns the number of the argument that says how large a result is whose shape would otherwise depend on
// elements, or -1.
int size_argument_of(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  const char* const size = name == "aten::repeat_interleave"                 ? "output_size"
                           : name == "aten::_padded_dense_to_jagged_forward" ? "total_L"
                                                                             : nullptr;
  if (size == nullptr) return -1;
  return op.schema().argumentIndexWithName(size).value_or(-1);
}

// Whether the operator gives a tensor another shape or memory.
bool reshapes(const std::string& name) {
  static const std::unordered_set<std::string> names{
      "aten::resize_", "aten::resize_as_", "aten::_resize_output_", "aten::set_", "aten::set_data",
  };
  return names.count(name) != 0;
}

// Returns why the results of equal calls may look different, or null if they do not. torch tags most
// operators whose results depend on elements. tests/device/operators/test_predictions.py looks for others in
// all of torch's operators.
const char* irregularity(const c10::OperatorHandle& op) {
  // The kernels of these read elements to shape a result, but are not tagged.
  static const std::unordered_set<std::string> untagged{
      "aten::_pack_padded_sequence",
      "aten::_padded_dense_to_jagged_forward",
      "aten::_embedding_bag",
      "aten::_embedding_bag_forward_only",
      "aten::segment_reduce",
      "aten::histogramdd",
      "aten::_histogramdd_bin_edges",
      "aten::_histogramdd_from_bin_cts",
      "aten::_histogramdd_from_bin_tensors",
  };
  const c10::OperatorName& name = op.operator_name();
  const bool known = name.name.rfind("aten::", 0) == 0 || name.name.rfind("vccl::", 0) == 0;
  if (!known) return "is of another library";
  if (reshapes(name.name) || op.hasTag(at::Tag::inplace_view)) return "reshapes an argument";
  if (untagged.count(name.name) != 0 || is_dynamic(op)) return "has results whose shape depends on elements";
  const auto& returns = op.schema().returns();
  const bool tensors = std::ranges::all_of(returns, [](const c10::Argument& result) {
    const auto kind = kind_of(result.type());
    return kind == ArgumentKind::tensor || kind == ArgumentKind::tensor_list;
  });
  return tensors ? nullptr : "returns something other than tensors";
}

// Whether a method of a tensor makes new elements of the old ones. Those that it leaves out replace elements.
bool works_in_place(const std::string& name) {
  static const std::unordered_set<std::string> replacing{
      "aten::bernoulli_",
      "aten::cauchy_",
      "aten::copy_",
      "aten::exponential_",
      "aten::fill_",
      "aten::fill_diagonal_",
      "aten::geometric_",
      "aten::index_copy_",
      "aten::index_fill_",
      "aten::index_put_",
      "aten::log_normal_",
      "aten::masked_fill_",
      "aten::normal_",
      "aten::masked_scatter_",
      "aten::put_",
      "aten::random_",
      "aten::scatter_",
      "aten::uniform_",
      "aten::zero_",
      "aten::_foreach_copy_",
      "aten::_index_copy_",
      "aten::_foreach_zero_",
      "aten::_index_put_impl_",
  };
  return name.ends_with('_') && !reshapes(name) && replacing.count(name) == 0;
}

std::unique_ptr<OperatorFacts> read_schema(const c10::OperatorHandle& op) {
  auto facts = std::make_unique<OperatorFacts>();
  const c10::FunctionSchema& schema = op.schema();
  facts->name = op.operator_name();
  facts->arguments = schema.arguments().size();
  // The numbers of these are sizes.
  const bool is_range = facts->name.name == "aten::arange" || facts->name.name == "aten::range";
  for (std::size_t i = 0; i < facts->arguments; ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (auto kind = kind_of(argument.type())) {
      const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
      facts->slots.push_back({i, *kind, written, may_be_cpu(facts->name, argument.name()), argument.is_out(),
                              written && i == 0 && works_in_place(facts->name.name)});
      facts->writes |= written;
    }
    facts->value_matters.push_back(is_range || !is_number(argument.type()));
  }
  for (const c10::Argument& result : schema.returns()) {
    facts->makes_view |= result.alias_info() != nullptr && !result.alias_info()->isWrite();
    int found = -1;
    if (result.alias_info() != nullptr && result.alias_info()->isWrite()) {
      for (const ArgumentSlot& slot : facts->slots) {
        const auto* alias = schema.arguments()[slot.index].alias_info();
        if (slot.written && alias->beforeSets() == result.alias_info()->beforeSets()) {
          found = static_cast<int>(slot.index);
        }
      }
    }
    facts->returned_argument.push_back(found);
  }
  facts->why_at_call = irregularity(op);
  facts->size_argument = size_argument_of(op);
  facts->refusal = cuda_refusal_of(facts->name, c10::DispatchKey::CPU);
  facts->sparse_refusal = cuda_refusal_of(facts->name, c10::DispatchKey::SparseCPU);
  facts->in_float32 = in_float32(facts->name);
  facts->waits_everywhere = is_dynamic(op) || facts->size_argument >= 0;
  return facts;
}

}  // namespace

namespace {

struct AllFacts {
  std::mutex mutex;
  // Of operators that had the same address one after the other.
  std::unordered_map<c10::OperatorHandle, std::vector<std::unique_ptr<OperatorFacts>>> of;
};

AllFacts& all_facts() {
  static auto& all = *new AllFacts;
  return all;
}

}  // namespace

// What a kernel of the cards' own calls, the program has not called.
void OperatorFacts::apply_refusals(c10::DispatchKey key, c10::ArrayRef<c10::IValue> call) const {
  const auto* const applied = key == c10::DispatchKey::CPU         ? refusal
                              : key == c10::DispatchKey::SparseCPU ? sparse_refusal
                                                                   : nullptr;
  if (applied != nullptr && !KernelScope::active()) applied->apply(call);
}

const OperatorFacts& facts_of(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<c10::OperatorHandle, const OperatorFacts*> known;
  const OperatorFacts*& entry = known[op];
  // The name is compared because an operator that was removed from the dispatcher (torch.library in tests)
  // may leave its address to another operator.
  if (entry != nullptr && entry->name == op.operator_name()) [[likely]] {
    return *entry;
  }
  AllFacts& all = all_facts();
  std::lock_guard lock(all.mutex);
  auto& versions = all.of[op];
  if (versions.empty() || !(versions.back()->name == op.operator_name())) {
    versions.push_back(read_schema(op));
  }
  entry = versions.back().get();
  return *entry;
}

std::vector<const OperatorFacts*> known_facts() {
  AllFacts& all = all_facts();
  std::lock_guard lock(all.mutex);
  std::vector<const OperatorFacts*> found;
  for (const auto& [op, versions] : all.of) {
    for (const auto& facts : versions) found.push_back(facts.get());
  }
  return found;
}

int find_card(const OperatorFacts& facts, c10::ArrayRef<c10::IValue> arguments) {
  int card = -1;
  for (const ArgumentSlot& slot : facts.slots) {
    const c10::IValue& argument = arguments[slot.index];
    if (argument.isNone()) {
      continue;
    }
    if (slot.kind == ArgumentKind::tensor) {
      card = card_of_tensor(argument.toTensor());
    } else if (slot.kind == ArgumentKind::tensor_list) {
      for (const at::Tensor& tensor : argument.toTensorList()) {
        card = std::max(card, card_of_tensor(tensor));
      }
    } else if (slot.kind == ArgumentKind::device && is_card(argument.toDevice())) {
      card = card_index(argument.toDevice());
    }
    if (card >= 0) {
      return card;
    }
  }
  return current_card();
}

}  // namespace vdev
