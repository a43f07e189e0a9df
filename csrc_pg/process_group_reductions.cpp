// The collectives that reduce.
#include "csrc_pg/checks.hpp"
#include "csrc_pg/process_group.hpp"
#include "csrc_pg/types.hpp"

namespace vccl {

namespace {

Call all_reduce_call(Plan& plan, const at::Tensor& tensor, const c10d::ReduceOp& op, const char* operation) {
  Call call{.collective = Collective::all_reduce};
  call.dtype = to_dtype(tensor.scalar_type(), operation);
  call.op = to_reduce_op(op, call.dtype, operation);
  call.count = static_cast<std::size_t>(tensor.numel());
  call.output = plan.update(tensor);
  call.input = call.output;
  return call;
}

}  // namespace

ProcessGroupVccl::WorkPtr ProcessGroupVccl::allreduce(Tensors& tensors,
                                                      const c10d::AllreduceOptions& options) {
  const auto& tensor = single(tensors, "all_reduce");
  Plan plan;
  plan.add(all_reduce_call(plan, tensor, options.reduceOp, "all_reduce"));
  return launch({c10d::OpType::ALLREDUCE, "all_reduce", tensor.device(), tensors, tensors, options.timeout,
                 options.asyncOp},
                std::move(plan));
}

ProcessGroupVccl::WorkPtr ProcessGroupVccl::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  constexpr const char* name = "all_reduce_coalesced";
  TORCH_CHECK_VALUE(!tensors.empty(), name, ": no tensors");
  Plan plan;
  check_tensor(tensors.front(), name);
  for (const auto& tensor : tensors) {
    check_alike(tensor, tensors.front(), name);
    plan.add(all_reduce_call(plan, tensor, options.reduceOp, name));
  }
  return launch({c10d::OpType::ALLREDUCE_COALESCED, name, tensors.front().device(), tensors, tensors,
                 options.timeout, options.asyncOp},
                std::move(plan));
}

}  // namespace vccl
