#include "csrc_device/torch/kernels/spoiled_tensors.hpp"

#include <string>
#include <unordered_set>

#include "csrc_device/torch/kernels/argument_tensors.hpp"
#include "csrc_device/torch/kernels/tensor_parts.hpp"

namespace vdev {
namespace {

// Calls `function` with the memory of the dense tensors that `tensor` consists of.
template <class Function>
void for_each_memory(const at::Tensor& tensor, const Function& function) {
  for_each_dense(tensor, [&](const at::Tensor& part) {
    function(StridedMemory{part.const_data_ptr(),
                           static_cast<std::size_t>(part.element_size()),
                           {part.sizes().data(), part.sizes().size()},
                           {part.strides().data(), part.strides().size()}});
  });
}

// Returns whether the operator writes all of its first argument without reading it. The schema of an in-place
// operator says only that it writes.
bool overwrites_first(const c10::OperatorName& op) {
  static const std::unordered_set<std::string> names{
      "aten::fill_",        "aten::zero_",       "aten::_foreach_zero_", "aten::_foreach_copy_",
      "aten::uniform_",     "aten::normal_",     "aten::random_",        "aten::bernoulli_",
      "aten::exponential_", "aten::log_normal_", "aten::geometric_",     "aten::cauchy_",
  };
  return names.count(op.name) != 0;
}

}  // namespace

FailurePtr find_spoiled(const at::Tensor& tensor) {
  FailurePtr found;
  for_each_memory(tensor, [&](const StridedMemory& memory) {
    if (!found) found = spoiled_memory().find(memory);
  });
  return found;
}

void check_readable(const at::Tensor& tensor) {
  if (const auto failure = find_spoiled(tensor)) failure->raise();
}

void spoil(const at::Tensor& tensor, const FailurePtr& failure) {
  for_each_memory(tensor, [&](const StridedMemory& memory) { spoiled_memory().spoil(memory, failure); });
}

void renew(const at::Tensor& tensor) {
  for_each_memory(tensor, [](const StridedMemory& memory) { spoiled_memory().renew(memory); });
}

namespace {

// Calls `function` with each tensor among the arguments, and how `op` uses it.
enum class Use { read, written, overwritten };
template <class Function>
void for_each_argument(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                       const Function& function) {
  const auto& arguments = op.schema().arguments();
  const auto* values = stack.data() + (stack.size() - arguments.size());
  const bool overwrites = overwrites_first(op.operator_name());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = arguments[i].alias_info();
    const bool only_written = arguments[i].is_out() || (overwrites && i == 0);
    const Use use = only_written                           ? Use::overwritten
                    : alias != nullptr && alias->isWrite() ? Use::written
                                                           : Use::read;
    for_each_tensor(values[i], [&](const at::Tensor& tensor) { function(tensor, use); });
  }
}

}  // namespace

FailurePtr find_spoiled_argument(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  FailurePtr found;
  for_each_argument(op, stack, [&](const at::Tensor& tensor, Use use) {
    if (!found && use != Use::overwritten) found = find_spoiled(tensor);
  });
  return found;
}

std::vector<at::Tensor> written_arguments(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  std::vector<at::Tensor> written;
  for_each_argument(op, stack, [&](const at::Tensor& tensor, Use use) {
    if (use != Use::read) written.push_back(tensor);
  });
  return written;
}

std::vector<at::Tensor> check_arguments(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  std::vector<at::Tensor> overwritten;
  for_each_argument(op, stack, [&](const at::Tensor& tensor, Use use) {
    if (use == Use::overwritten)
      overwritten.push_back(tensor);
    else
      check_readable(tensor);
  });
  return overwritten;
}

}  // namespace vdev
