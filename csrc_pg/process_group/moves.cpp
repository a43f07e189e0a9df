// The collectives that move data and reduce none.
#include "csrc_pg/arguments/checks.hpp"
#include "csrc_pg/arguments/counts.hpp"
#include "csrc_pg/arguments/overlap.hpp"
#include "csrc_pg/arguments/torch_types.hpp"
#include "csrc_pg/process_group/process_group.hpp"

namespace vccl {

namespace {

void add_all_gather(CollectivePlan& plan, const at::Tensor& output, const at::Tensor& input,
                    const char* operation) {
  Call call = call_of(Collective::all_gather, input, operation);
  call.input = plan.read(input);
  call.output = plan.write(output);
  plan.add(call);
}

// Adds an all_gather of chunks of any sizes. All ranks must give the same sizes.
void add_all_gather(CollectivePlan& plan, const TensorVector& outputs, const at::Tensor& input,
                    const char* operation) {
  Call call = call_of(Collective::all_gather, input, operation);
  call.output_counts = plan.counts(elements_of_each(outputs));
  call.input = plan.read(input);
  call.output = plan.write_all(outputs);
  plan.add(call);
}

void check_all_gather(const TensorVector& outputs, const at::Tensor& input, int rank, int size,
                      const char* operation) {
  check_list(outputs, input, size, "output", operation);
  check_own_chunk(outputs, input, rank, "output", "input", operation);
  check_all_written(outputs, "output", operation);
  check_apart(input, outputs, rank, "input", "output", operation);
}

// Returns copies of the inputs, which the current stream makes.
TensorVector copies_of(const TensorVector& inputs) {
  TensorVector copies;
  for (const auto& input : inputs) copies.push_back(input.clone());
  return copies;
}

}  // namespace

ProcessGroupVccl::WorkPtr ProcessGroupVccl::broadcast(Tensors& tensors,
                                                      const c10d::BroadcastOptions& options) {
  constexpr const char* name = "broadcast";
  const auto& tensor = single(tensors, name);
  check_root(options.rootRank, size_, "source", name);
  nccl_.check_moved(tensor, name);
  const bool is_root = options.rootRank == rank_;
  if (!is_root) check_written(tensor, "tensor", name);
  CollectivePlan plan;
  Call call = call_of(Collective::broadcast, tensor, name, options.rootRank);
  const auto moved = nccl_.memory_of(tensor);
  // The source's tensor is only read, so nothing is copied back.
  call.output = is_root ? const_cast<void*>(plan.read(moved)) : plan.write(moved);
  call.input = call.output;
  plan.add(call);
  return launch(request_of(c10d::OpType::BROADCAST, name, tensors, tensors, options), std::move(plan));
}

ProcessGroupVccl::WorkPtr ProcessGroupVccl::allgather(TensorLists& lists, Tensors& inputs,
                                                      const c10d::AllgatherOptions& options) {
  constexpr const char* name = "all_gather";
  const auto& input = single(inputs, name);
  const auto& outputs = single_list(lists, "output", name);
  check_all_gather(outputs, input, rank_, size_, name);
  nccl_.check_moved(input, name);
  if (!have_equal_sizes(outputs)) {
    nccl_.check_row_major(input, name);
    nccl_.check_row_major(outputs, name);
  }
  CollectivePlan plan;
  add_all_gather(plan, outputs, input, name);
  auto request = request_of(c10d::OpType::ALLGATHER, name, inputs, outputs, options);
  request.stacks_outputs = nccl_.on() && !input.is_cpu() && have_equal_sizes(outputs);
  return launch(std::move(request), std::move(plan));
}

ProcessGroupVccl::WorkPtr ProcessGroupVccl::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                            const c10d::AllgatherOptions& options) {
  constexpr const char* name = "all_gather_into_tensor";
  check_tensor(input, name);
  check_chunks(output, input, size_, "output", "input", name);
  nccl_.check_moved(input, name);
  nccl_.check_moved(output, name);
  check_written(output, "output", name);
  check_in_place(input, output, rank_, size_, "input", "output", name);
  CollectivePlan plan;
  add_all_gather(plan, nccl_.memory_of(output), nccl_.memory_of(input), name);
  return launch(request_of(c10d::OpType::_ALLGATHER_BASE, name, {input}, {output}, options), std::move(plan));
}

ProcessGroupVccl::WorkPtr ProcessGroupVccl::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  constexpr const char* name = "all_gather_into_tensor_coalesced";
  check_pairs(outputs, inputs, name);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    check_chunks(outputs[i], inputs[i], size_, "output", "input", name);
  nccl_.check_row_major(inputs, name);
  nccl_.check_row_major(outputs, name);
  for (const auto& input : inputs) nccl_.check_moved(input, name);
  check_all_written(outputs, "output", name);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    check_in_place(inputs[i], outputs[i], rank_, size_, "input", "output", name);
  check_all_apart(inputs, outputs, 0, "input", "output", name);
  CollectivePlan plan;
  for (std::size_t i = 0; i < inputs.size(); ++i) add_all_gather(plan, outputs[i], inputs[i], name);
  return launch(request_of(c10d::OpType::COALESCED, name, inputs, outputs, options), std::move(plan));
}

// lists[r][i] receives inputs[i] of rank r.
ProcessGroupVccl::WorkPtr ProcessGroupVccl::allgather_coalesced(TensorLists& lists, Tensors& inputs,
                                                                const c10d::AllgatherOptions& options) {
  constexpr const char* name = "all_gather_coalesced";
  check_one_device(inputs, name);
  if (!inputs.front().is_cpu()) nccl_.refuse_unsupported("allgather_coalesced", name);
  TORCH_CHECK_VALUE(lists.size() == static_cast<std::size_t>(size_), name, ": ", lists.size(),
                    " lists of outputs for a group of ", size_, " ranks");
  Tensors all;
  for (std::size_t r = 0; r < lists.size(); ++r) {
    TORCH_CHECK_VALUE(lists[r].size() == inputs.size(), name, ": list ", r, " has ", lists[r].size(),
                      " outputs for ", inputs.size(), " inputs");
    all.insert(all.end(), lists[r].begin(), lists[r].end());
  }
  CollectivePlan plan;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Tensors outputs;
    for (const auto& list : lists) outputs.push_back(list[i]);
    check_all_gather(outputs, inputs[i], rank_, size_, name);
    add_all_gather(plan, outputs, inputs[i], name);
  }
  check_all_written(all, "output", name);
  check_all_apart(inputs, all, static_cast<std::size_t>(rank_) * inputs.size(), "input", "output", name);
  return launch(request_of(c10d::OpType::ALLGATHER_COALESCED, name, inputs, std::move(all), options),
                std::move(plan));
}

ProcessGroupVccl::WorkPtr ProcessGroupVccl::gather(TensorLists& lists, Tensors& inputs,
                                                   const c10d::GatherOptions& options) {
  constexpr const char* name = "gather";
  const auto& input = single(inputs, name);
  check_root(options.rootRank, size_, "destination", name);
  nccl_.check_exchanged(input, name);
  const bool is_root = options.rootRank == rank_;
  CollectivePlan plan;
  Call call = call_of(Collective::gather, input, name, options.rootRank);
  Tensors outputs;
  if (is_root) {
    outputs = single_list(lists, "output", name);
    check_equal_list(outputs, input, size_, "output", "input", name);
    nccl_.check_same_sizes(outputs, input, name);
    nccl_.check_dense(outputs, name);
    check_all_written(outputs, "output", name);
    check_apart(input, outputs, rank_, "input", "output", name);
    call.output = plan.write_all(nccl_.memory_of(outputs));
  } else {
    check_no_list(lists, "output", options.rootRank, name);
  }
  call.input = plan.read(nccl_.memory_of(input));
  plan.add(call);
  return launch(request_of(c10d::OpType::GATHER, name, inputs, std::move(outputs), options), std::move(plan));
}

ProcessGroupVccl::WorkPtr ProcessGroupVccl::gather_single(at::Tensor& output, at::Tensor& input,
                                                          const c10d::GatherOptions& options) {
  constexpr const char* name = "gather_single";
  check_tensor(input, name);
  if (!input.is_cpu()) nccl_.refuse_unsupported("gather_single", name);
  check_root(options.rootRank, size_, "destination", name);
  CollectivePlan plan;
  Call call = call_of(Collective::gather, input, name, options.rootRank);
  Tensors outputs;
  // Other ranks give any tensor, such as an empty one.
  if (options.rootRank == rank_) {
    check_chunks(output, input, size_, "output", "input", name);
    check_written(output, "output", name);
    check_in_place(input, output, rank_, size_, "input", "output", name);
    call.output = plan.write(output);
    outputs.push_back(output);
  }
  call.input = plan.read(input);
  plan.add(call);
  return launch(request_of(c10d::OpType::GATHER, name, {input}, std::move(outputs), options),
                std::move(plan));
}

ProcessGroupVccl::WorkPtr ProcessGroupVccl::scatter(Tensors& outputs, TensorLists& lists,
                                                    const c10d::ScatterOptions& options) {
  constexpr const char* name = "scatter";
  const auto& output = single(outputs, name);
  check_root(options.rootRank, size_, "source", name);
  nccl_.check_dense(outputs, name);
  nccl_.check_exchanged(nccl_.memory_of(output), name);
  check_written(output, "output", name);
  const bool is_root = options.rootRank == rank_;
  CollectivePlan plan;
  Call call = call_of(Collective::scatter, output, name, options.rootRank);
  Tensors inputs;
  if (is_root) {
    inputs = single_list(lists, "input", name);
    check_equal_list(inputs, output, size_, "input", "output", name);
    nccl_.check_same_sizes(inputs, output, name);
    nccl_.check_dense(inputs, name);
    check_apart(output, inputs, rank_, "output", "input", name);
    call.input = plan.read_all(nccl_.memory_of(inputs));
  } else {
    check_no_list(lists, "input", options.rootRank, name);
  }
  call.output = plan.write(nccl_.memory_of(output));
  plan.add(call);
  return launch(request_of(c10d::OpType::SCATTER, name, std::move(inputs), outputs, options),
                std::move(plan));
}

ProcessGroupVccl::WorkPtr ProcessGroupVccl::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                          std::vector<std::int64_t>& output_splits,
                                                          std::vector<std::int64_t>& input_splits,
                                                          const c10d::AllToAllOptions& options) {
  constexpr const char* name = "all_to_all_single";
  check_tensor(input, name);
  check_alike(output, input, name);
  nccl_.check_exchanged(input, name);
  nccl_.check_exchanged(output, name);
  const auto input_counts = elements_of_splits(input, input_splits, size_, "input", name);
  const auto output_counts = elements_of_splits(output, output_splits, size_, "output", name);
  check_own_counts(input_counts, output_counts, rank_, name);
  check_written(output, "output", name);
  TORCH_CHECK_VALUE(!overlap(output, input), name, ": the output overlaps the input");

  CollectivePlan plan;
  Call call = call_of(Collective::all_to_all, input, name);
  if (input_splits.empty() && output_splits.empty()) {
    call.count = input_counts.front();
  } else {
    call.input_counts = plan.counts(input_counts);
    call.output_counts = plan.counts(output_counts);
  }
  call.input = plan.read(nccl_.memory_of(input));
  call.output = plan.write(nccl_.memory_of(output));
  plan.add(call);
  Request request = request_of(c10d::OpType::ALLTOALL_BASE, name, {input}, {output}, options);
  request.input_splits = input_splits;
  request.output_splits = output_splits;
  return launch(std::move(request), std::move(plan));
}

ProcessGroupVccl::WorkPtr ProcessGroupVccl::alltoall(Tensors& outputs, Tensors& inputs,
                                                     const c10d::AllToAllOptions& options) {
  constexpr const char* name = "all_to_all";
  check_one_device(inputs, name);
  check_list(inputs, inputs.front(), size_, "input", name);
  check_list(outputs, inputs.front(), size_, "output", name);
  nccl_.check_exchanged(inputs, name);
  nccl_.check_exchanged(outputs, name);
  check_all_written(outputs, "output", name);
  const bool in_place = check_in_pairs(inputs, outputs, "input", "output", name);

  CollectivePlan plan;
  Call call = call_of(Collective::all_to_all, inputs.front(), name);
  call.input_counts = plan.counts(elements_of_each(inputs));
  call.output_counts = plan.counts(elements_of_each(outputs));
  check_own_counts(call.input_counts, call.output_counts, rank_, name);
  // An output would be written before a peer has read the input.
  call.input = plan.read_all(nccl_.memory_of(in_place ? copies_of(inputs) : inputs));
  call.output = plan.write_all(nccl_.memory_of(outputs));
  plan.add(call);
  Request request = request_of(c10d::OpType::ALLTOALL, name, inputs, outputs, options);
  for (const auto& input : inputs) request.input_splits.push_back(input.numel());
  for (const auto& output : outputs) request.output_splits.push_back(output.numel());
  return launch(std::move(request), std::move(plan));
}

}  // namespace vccl
