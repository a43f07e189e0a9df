#include "csrc_device/torch/facts/element_waits.hpp"

#include <algorithm>

namespace vdev {
namespace {

bool is_mask(const std::optional<at::Tensor>& index) {
  return index && index->defined() &&
         (index->scalar_type() == at::kBool || index->scalar_type() == at::kByte);
}

// CUDA fills where a mask is set, and needs no count, if one value goes there: labels[mask] = -100.
bool fills_by_mask(const OperatorFacts& facts, c10::ArrayRef<c10::IValue> arguments) {
  const std::string& name = facts.name.name;
  if (name != "aten::index_put" && name != "aten::index_put_" && name != "aten::_index_put_impl_")
    return false;
  return arguments[2].toTensor().numel() == 1 && !arguments[3].toBool();
}

// CUDA looks for the elements of a dense tensor that are not 0. torch does not tag these operators, whose
// results are sparse.
bool finds_elements(const OperatorFacts& facts, c10::ArrayRef<c10::IValue> arguments) {
  return facts.name.name.starts_with("aten::_to_sparse") && arguments[0].toTensor().layout() == at::kStrided;
}

}  // namespace

bool waits_for_elements(const OperatorFacts& facts, c10::ArrayRef<c10::IValue> arguments) {
  if (facts.is_sized(arguments)) return false;
  if (facts.waits_everywhere || finds_elements(facts, arguments)) return true;
  if (fills_by_mask(facts, arguments)) return false;
  return std::ranges::any_of(facts.slots, [&](const ArgumentSlot& slot) {
    if (slot.kind != ArgumentKind::optional_tensor_list) return false;
    const auto tensors = arguments[slot.index].toOptionalTensorList();
    return std::any_of(tensors.begin(), tensors.end(),
                       [](std::optional<at::Tensor> index) { return is_mask(index); });
  });
}

}  // namespace vdev
