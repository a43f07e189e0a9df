#include "csrc_pg/operations/request.hpp"

#include <limits>

#include "csrc_device/torch/torch_version.hpp"

namespace vccl {

static_assert(static_cast<int>(FlightReduction::premul_sum) ==
              static_cast<int>(c10d::ReduceOp::RedOpType::PREMUL_SUM) + 1);

void set_reduction(Request& request, const c10d::ReduceOp& op) {
  const auto number = static_cast<int>(op.op_) + 1;
  // A wrong one is refused before anything is recorded.
  if (number > static_cast<int>(FlightReduction::premul_sum)) return;
  request.reduction = static_cast<FlightReduction>(number);
  if (request.reduction != FlightReduction::premul_sum) return;
  const auto* premul = dynamic_cast<const vdev::torch_version::PreMulSumSupplement*>(op.supplement_.get());
  if (premul == nullptr) return;
  const auto& tensor = premul->tensor_factor;
  if (!tensor.defined())
    request.factor = premul->double_factor;
  else if (tensor.device().is_cpu() && tensor.numel() == 1)
    request.factor = tensor.item().toDouble();
  else
    request.factor = std::numeric_limits<double>::quiet_NaN();
}

}  // namespace vccl
