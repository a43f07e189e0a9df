// The collectives that reduce.
#include "csrc_device/torch/gil.hpp"
#include "csrc_device/torch/streams.hpp"
#include "csrc_pg/arguments/checks.hpp"
#include "csrc_pg/arguments/counts.hpp"
#include "csrc_pg/arguments/torch_types.hpp"
#include "csrc_pg/operations/errors.hpp"
#include "csrc_pg/process_group/process_group.hpp"
#include "csrc_pg/tasks/sparse_all_reduce.hpp"

namespace vccl {

namespace {

// Adds a call that is complete but for its reduction.
void add(CollectivePlan& plan, Call call, const c10d::ReduceOp& op, c10::Device device,
         const char* operation) {
  call.op = to_reduce_op(op, call.dtype, operation);
  if (call.op != ReduceOp::premul_sum) return plan.add(call);
  const Factor factor = factor_of(op, device, operation);
  call.factor = factor.value;
  if (factor.on_card.defined()) return plan.add(call, factor.on_card);
  plan.add(call);
}

void add_all_reduce(CollectivePlan& plan, const at::Tensor& tensor, const c10d::ReduceOp& op,
                    const char* operation) {
  Call call = call_of(Collective::all_reduce, tensor, operation);
  call.output = plan.update(tensor);
  call.input = call.output;
  add(plan, call, op, tensor.device(), operation);
}

void add_reduce_scatter(CollectivePlan& plan, const at::Tensor& output, const at::Tensor& input,
                        const c10d::ReduceOp& op, const char* operation) {
  Call call = call_of(Collective::reduce_scatter, output, operation);
  call.input = plan.read(input);
  call.output = plan.write(output);
  add(plan, call, op, output.device(), operation);
}

}  // namespace

ProcessGroupVccl::WorkPtr ProcessGroupVccl::allreduce(Tensors& tensors,
                                                      const c10d::AllreduceOptions& options) {
  // torch calls this for sparse CPU tensors, but allreduce_sparse() for those of CUDA.
  if (tensors.size() == 1 && tensors.front().defined() && tensors.front().is_sparse())
    return allreduce_sparse(tensors, options);
  constexpr const char* name = "all_reduce";
  const auto& tensor = single(tensors, name);
  nccl_.check_moved(tensor, name);
  nccl_.check_reduction(tensor, options.reduceOp, name);
  check_written(tensor, "tensor", name);
  CollectivePlan plan;
  add_all_reduce(plan, nccl_.memory_of(tensor), options.reduceOp, name);
  return launch(request_of(c10d::OpType::ALLREDUCE, name, tensors, tensors, options), std::move(plan));
}

ProcessGroupVccl::WorkPtr ProcessGroupVccl::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  constexpr const char* name = "all_reduce_coalesced";
  check_one_device(tensors, name);
  for (const auto& tensor : tensors) check_alike(tensor, tensors.front(), name);
  nccl_.check_dense(tensors, name);
  nccl_.check_reduction(tensors.front(), options.reduceOp, name);
  check_all_written(tensors, "tensor", name);
  CollectivePlan plan;
  for (const auto& tensor : tensors) add_all_reduce(plan, nccl_.memory_of(tensor), options.reduceOp, name);
  return launch(request_of(c10d::OpType::ALLREDUCE_COALESCED, name, tensors, tensors, options),
                std::move(plan));
}

ProcessGroupVccl::WorkPtr ProcessGroupVccl::allreduce_sparse(Tensors& tensors,
                                                             const c10d::AllreduceOptions& options) {
  constexpr const char* name = "all_reduce of sparse tensors";
  TORCH_CHECK_VALUE(tensors.size() == 1, name, ": backend vccl takes one tensor a call, and was given ",
                    tensors.size());
  const auto& tensor = tensors.front();
  if (!tensor.is_cpu()) nccl_.refuse_sparse(name);
  const auto reduction = check_sparse(tensor, options.reduceOp, name);
  const bool on_card = !tensor.is_cpu();
  std::optional<c10::Stream> stream;
  if (on_card) {
    TORCH_CHECK_NOT_IMPLEMENTED(!coalescing_.active(), "Backend vccl does not support ", name,
                                " of a card within a coalescing block: the host has to wait for it");
    vdev::WithoutGil without_gil;  // the call may wait for the other ranks
    const auto where =
        with_torch_errors([&] { return communicators_.get(tensor.device(), effective(options.timeout)); });
    stream = vdev::to_torch(*where->stream());
  }
  CollectivePlan plan;
  plan.add(sparse_all_reduce(tensor, reduction, stream, name));
  Request request = request_of(c10d::OpType::_ALLREDUCE_SPARSE, name, tensors, tensors, options);
  request.async = options.asyncOp || on_card;
  // The number of elements is in the tensor object and not on the card, so the host needs it before it can go
  // on.
  request.blocks_host = on_card;
  auto work = launch(std::move(request), std::move(plan));
  if (!options.asyncOp && on_card) {
    work->wait();
    return nullptr;
  }
  return work;
}

ProcessGroupVccl::WorkPtr ProcessGroupVccl::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  constexpr const char* name = "reduce";
  const auto& tensor = single(tensors, name);
  check_root(options.rootRank, size_, "destination", name);
  nccl_.check_moved(tensor, name);
  nccl_.check_reduction(tensor, options.reduceOp, name);
  const bool is_root = options.rootRank == rank_;
  if (is_root) check_written(tensor, "tensor", name);
  CollectivePlan plan;
  Call call = call_of(Collective::reduce, tensor, name, options.rootRank);
  const auto moved = nccl_.memory_of(tensor);
  // The operation writes only to the destination's tensor.
  if (is_root) call.output = plan.update(moved);
  call.input = is_root ? call.output : plan.read(moved);
  add(plan, call, options.reduceOp, tensor.device(), name);
  return launch(request_of(c10d::OpType::REDUCE, name, tensors, tensors, options), std::move(plan));
}

ProcessGroupVccl::WorkPtr ProcessGroupVccl::reduce_scatter(Tensors& outputs, TensorLists& lists,
                                                           const c10d::ReduceScatterOptions& options) {
  constexpr const char* name = "reduce_scatter";
  const auto& output = single(outputs, name);
  const auto& inputs = single_list(lists, "input", name);
  check_list(inputs, output, size_, "input", name);
  check_own_chunk(inputs, output, rank_, "input", "output", name);
  nccl_.check_reduction(output, options.reduceOp, name);
  nccl_.check_row_major(output, name);
  if (!have_equal_sizes(inputs)) nccl_.check_row_major(inputs, name);
  check_written(output, "output", name);
  check_apart(output, inputs, rank_, "output", "input", name);

  CollectivePlan plan;
  Call call = call_of(Collective::reduce_scatter, output, name);
  call.input_counts = plan.counts(elements_of_each(inputs));
  call.input = plan.read_all(inputs);
  call.output = plan.write(output);
  add(plan, call, options.reduceOp, output.device(), name);
  return launch(request_of(c10d::OpType::REDUCE_SCATTER, name, inputs, outputs, options), std::move(plan));
}

ProcessGroupVccl::WorkPtr ProcessGroupVccl::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                                 const c10d::ReduceScatterOptions& options) {
  constexpr const char* name = "reduce_scatter_tensor";
  check_tensor(output, name);
  check_chunks(input, output, size_, "input", "output", name);
  nccl_.check_row_major(input, name);
  nccl_.check_row_major(output, name);
  nccl_.check_reduction(output, options.reduceOp, name);
  check_written(output, "output", name);
  check_in_place(output, input, rank_, size_, "output", "input", name);
  CollectivePlan plan;
  add_reduce_scatter(plan, output, input, options.reduceOp, name);
  return launch(request_of(c10d::OpType::_REDUCE_SCATTER_BASE, name, {input}, {output}, options),
                std::move(plan));
}

ProcessGroupVccl::WorkPtr ProcessGroupVccl::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  constexpr const char* name = "reduce_scatter_tensor_coalesced";
  check_pairs(outputs, inputs, name);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    check_chunks(inputs[i], outputs[i], size_, "input", "output", name);
  nccl_.check_row_major(inputs, name);
  nccl_.check_row_major(outputs, name);
  for (const auto& output : outputs) nccl_.check_reduction(output, options.reduceOp, name);
  check_all_written(outputs, "output", name);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    check_in_place(outputs[i], inputs[i], rank_, size_, "output", "input", name);
  check_all_apart(inputs, outputs, 0, "input", "output", name);
  CollectivePlan plan;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    add_reduce_scatter(plan, outputs[i], inputs[i], options.reduceOp, name);
  return launch(request_of(c10d::OpType::COALESCED, name, inputs, outputs, options), std::move(plan));
}

}  // namespace vccl
