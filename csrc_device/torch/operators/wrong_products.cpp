#include "csrc_device/torch/operators/wrong_products.hpp"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <string>
#include <unordered_set>

#include "faults/faults.hpp"

namespace vdev {
namespace {

bool is_product(const std::string& name) {
  static const std::unordered_set<std::string> names{"aten::mm",   "aten::addmm",   "aten::_addmm_activation",
                                                     "aten::bmm",  "aten::baddbmm", "aten::addbmm",
                                                     "aten::mv",   "aten::addmv",   "aten::dot",
                                                     "aten::vdot", "aten::linear"};
  return names.contains(name);
}

}  // namespace

void damage_product(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (!is_product(op.operator_name().name) || stack.empty() || !stack.back().isTensor()) return;
  at::Tensor element = stack.back().toTensor();
  if (element.numel() == 0) return;
  const auto strikes = vccl::faults::decide({.op = "matmul", .writes = true, .floating = true});
  if (!strikes) return;
  const auto draw = strikes->wrong_element();
  if (!draw) return;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  auto index = static_cast<std::int64_t>(*draw % static_cast<std::uint64_t>(element.numel()));
  while (element.dim() > 0) {
    const auto size = element.size(-1);
    element = element.select(-1, index % size);
    index /= size;
  }
  // Another number, whatever the element is.
  element.add_(element.abs().add_(1));
}

}  // namespace vdev
