#include "csrc_pg/symmetric/operators.hpp"

namespace vccl::symmetric {

void check_same_elements(const char* name, const at::Tensor& input, const at::Tensor& output) {
  TORCH_CHECK_VALUE(input.device() == output.device() && input.scalar_type() == output.scalar_type() &&
                        input.numel() == output.numel(),
                    name, ": the input has ", input.numel(), " elements of ", input.scalar_type(), " on ",
                    input.device(), ", and the output ", output.numel(), " of ", output.scalar_type(), " on ",
                    output.device());
}

}  // namespace vccl::symmetric
