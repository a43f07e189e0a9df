#include "csrc_device/torch/tasks/watched_call.hpp"

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/facts/element_waits.hpp"
#include "csrc_device/torch/kernels/argument_tensors.hpp"
#include "csrc_device/torch/kernels/touched.hpp"

namespace vdev {
namespace {

// The schemas of these do not say that they write the running statistics, their arguments 3 and 4, when the
// argument `training` is set.
bool writes_in_secret(const OperatorFacts& facts, const ArgumentSlot& slot,
                      c10::ArrayRef<c10::IValue> arguments) {
  if (slot.index != 3 && slot.index != 4) return false;
  const std::string& name = facts.name.name;
  const bool is_norm = name == "aten::native_batch_norm" || name == "vccl::batch_norm_forward";
  return is_norm && arguments.size() > 5 && arguments[5].isBool() && arguments[5].toBool();
}

}  // namespace

WatchedCall::WatchedCall(const OperatorFacts& facts, int card, c10::ArrayRef<c10::IValue> arguments)
    : facts_(facts),
      card_(card),
      scope_(facts.name.name.c_str()),
      waits_(waits_for_elements(facts, arguments)) {
  if (facts.makes_view) return;
  for (const ArgumentSlot& slot : facts.slots) {
    const bool writes = slot.written || writes_in_secret(facts, slot, arguments);
    for_each_tensor(arguments[slot.index], [&](const at::Tensor& tensor) {
      if (slot.out)
        outs_.push_back(tensor);
      else
        tensors_.add(tensor, writes, slot.updated);
    });
  }
}

void WatchedCall::returned(const torch::jit::Stack& stack) {
  const std::size_t first = stack.size() - facts_.returned_argument.size();
  for (std::size_t i = 0; i < facts_.returned_argument.size() && !facts_.makes_view; ++i) {
    if (facts_.returned_argument[i] >= 0) continue;
    for_each_tensor(stack[first + i], [&](const at::Tensor& tensor) { tensors_.written(tensor); });
  }
  for (const at::Tensor& out : outs_) tensors_.written(out);
  races::record_call(card_, scope_.site(), tensors_);
  if (waits_) races::host_waits_for(*current_stream(card_), 0, facts_.name.name.c_str());
}

}  // namespace vdev
