// The collectives that move data and reduce none.
#include "csrc_pg/checks.hpp"
#include "csrc_pg/process_group.hpp"
#include "csrc_pg/types.hpp"

namespace vccl {

namespace {

Call all_gather_call(Plan& plan, void* output, const at::Tensor& input, const char* operation) {
  Call call{.collective = Collective::all_gather};
  call.dtype = to_dtype(input.scalar_type(), operation);
  call.count = static_cast<std::size_t>(input.numel());
  call.input = plan.read(input);
  call.output = output;
  return call;
}

}  // namespace

ProcessGroupVccl::WorkPtr ProcessGroupVccl::broadcast(Tensors& tensors,
                                                      const c10d::BroadcastOptions& options) {
  const auto& tensor = single(tensors, "broadcast");
  TORCH_CHECK_VALUE(options.rootRank >= 0 && options.rootRank < size_, "broadcast: the source is rank ",
                    options.rootRank, " of a group of ", size_, " ranks");
  Plan plan;
  Call call{.collective = Collective::broadcast};
  call.dtype = to_dtype(tensor.scalar_type(), "broadcast");
  call.root = static_cast<int>(options.rootRank);
  call.count = static_cast<std::size_t>(tensor.numel());
  // The source's tensor is only read: nothing to copy back.
  call.output = call.root == rank_ ? const_cast<void*>(plan.read(tensor)) : plan.write(tensor);
  call.input = call.output;
  plan.add(call);
  return launch({c10d::OpType::BROADCAST, "broadcast", tensor.device(), tensors, tensors, options.timeout,
                 options.asyncOp},
                std::move(plan));
}

ProcessGroupVccl::WorkPtr ProcessGroupVccl::allgather(TensorLists& outputs, Tensors& inputs,
                                                      const c10d::AllgatherOptions& options) {
  const auto& input = single(inputs, "all_gather");
  TORCH_CHECK_VALUE(outputs.size() == 1, "all_gather: backend vccl takes one list of outputs, and was given ",
                    outputs.size());
  check_gather_list(outputs.front(), input, size_, "all_gather");
  Plan plan;
  plan.add(all_gather_call(plan, plan.write_all(outputs.front()), input, "all_gather"));
  return launch({c10d::OpType::ALLGATHER, "all_gather", input.device(), inputs, outputs.front(),
                 options.timeout, options.asyncOp},
                std::move(plan));
}

ProcessGroupVccl::WorkPtr ProcessGroupVccl::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                            const c10d::AllgatherOptions& options) {
  check_tensor(input, "all_gather_into_tensor");
  check_gathered(output, input, size_, "all_gather_into_tensor");
  Plan plan;
  plan.add(all_gather_call(plan, plan.write(output), input, "all_gather_into_tensor"));
  return launch({c10d::OpType::_ALLGATHER_BASE,
                 "all_gather_into_tensor",
                 input.device(),
                 {input},
                 {output},
                 options.timeout,
                 options.asyncOp},
                std::move(plan));
}

ProcessGroupVccl::WorkPtr ProcessGroupVccl::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  constexpr const char* name = "all_gather_into_tensor_coalesced";
  TORCH_CHECK_VALUE(!inputs.empty() && outputs.size() == inputs.size(), name, ": ", outputs.size(),
                    " outputs for ", inputs.size(), " inputs");
  Plan plan;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_tensor(inputs[i], name);
    check_gathered(outputs[i], inputs[i], size_, name);
    TORCH_CHECK_VALUE(inputs[i].device() == inputs[0].device(), name, ": inputs on different devices");
    plan.add(all_gather_call(plan, plan.write(outputs[i]), inputs[i], name));
  }
  return launch({c10d::OpType::COALESCED, name, inputs.front().device(), inputs, outputs, options.timeout,
                 options.asyncOp},
                std::move(plan));
}

}  // namespace vccl
