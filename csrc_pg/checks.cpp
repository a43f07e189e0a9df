#include "csrc_pg/checks.hpp"

#include <c10/util/Exception.h>

namespace vccl {

void check_tensor(const at::Tensor& tensor, const char* operation) {
  TORCH_CHECK_VALUE(tensor.defined(), operation, ": the tensor is undefined");
  const auto device = tensor.device();
  TORCH_CHECK_VALUE(device.is_cpu() || device.is_privateuseone(), operation,
                    ": backend vccl serves tensors on vdev and on the CPU, and this one is on ", device);
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == at::kStrided, "Backend vccl does not support ", operation,
                              " of ", tensor.layout(), " tensors");
  TORCH_CHECK_VALUE(!tensor.is_conj() && !tensor.is_neg(), operation,
                    ": the tensor is a lazy conjugate or negation; call resolve_conj().resolve_neg() first");
}

const at::Tensor& single(const std::vector<at::Tensor>& tensors, const char* operation) {
  TORCH_CHECK_VALUE(tensors.size() == 1, operation, ": backend vccl takes one tensor a call, and was given ",
                    tensors.size());
  check_tensor(tensors.front(), operation);
  return tensors.front();
}

void check_alike(const at::Tensor& tensor, const at::Tensor& like, const char* operation) {
  check_tensor(tensor, operation);
  TORCH_CHECK_VALUE(tensor.device() == like.device(), operation, ": tensors on ", like.device(), " and on ",
                    tensor.device(), " in one call");
  // TypeError, as ProcessGroupNCCL and ProcessGroupGloo have it.
  TORCH_CHECK_TYPE(tensor.scalar_type() == like.scalar_type(), operation, ": tensors of ", like.scalar_type(),
                   " and of ", tensor.scalar_type(), " in one call");
}

void check_gather_list(const std::vector<at::Tensor>& outputs, const at::Tensor& input, int size,
                       const char* operation) {
  TORCH_CHECK_VALUE(outputs.size() == static_cast<std::size_t>(size), operation, ": ", outputs.size(),
                    " output tensors for a group of ", size, " ranks");
  for (const auto& output : outputs) {
    check_alike(output, input, operation);
    TORCH_CHECK_NOT_IMPLEMENTED(output.numel() == input.numel(), "Backend vccl does not support ", operation,
                                " of tensors of different sizes: an output has ", output.numel(),
                                " elements, the input ", input.numel());
  }
}

void check_gathered(const at::Tensor& output, const at::Tensor& input, int size, const char* operation) {
  check_alike(output, input, operation);
  TORCH_CHECK_VALUE(output.numel() == input.numel() * size, operation, ": the output has ", output.numel(),
                    " elements, and must have ", size, " (ranks) times the input's ", input.numel());
}

}  // namespace vccl
