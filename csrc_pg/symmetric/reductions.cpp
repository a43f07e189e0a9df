// The operators of symmetric memory that reduce. The group's own collectives do the work: they read the
// memory of the peers in place, compare what the ranks have called, and end when a peer dies.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/registration.hpp"
#include "csrc_pg/arguments/torch_types.hpp"
#include "csrc_pg/symmetric/allocations.hpp"
#include "csrc_pg/symmetric/operators.hpp"

namespace vccl::symmetric {
namespace {

// The functions that are registered take strings by value: torch compares their types with those of its own
// kernels.

// As on CUDA, a part that a rank reduces has to be a multiple of what one instruction moves.
constexpr std::int64_t kPartBytes = 16;

at::Tensor new_like(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options(), at::MemoryFormat::Contiguous);
}

void check_sum(const char* name, const std::string& reduce_op) {
  TORCH_CHECK(reduce_op == "sum", name, ": only 'sum' is supported, and '", reduce_op, "' was asked for");
}

/// Launches an all_reduce from one memory to another, which may be the same.
void all_reduce(const char* name, const at::Tensor& input, const std::string& group,
                const at::Tensor& output) {
  check_same_elements(name, input, output);
  CollectivePlan plan;
  Call call = call_of(Collective::all_reduce, output, name);
  if (input.is_same(output)) {
    call.output = plan.update(output);
    call.input = call.output;
  } else {
    call.input = plan.read(input);
    call.output = plan.write(output);
  }
  plan.add(call);
  group_of(group)->launch_plan(name, {input}, {output}, std::move(plan));
}

template <const auto& kName>
at::Tensor& all_reduce_out(const at::Tensor& input, std::string reduce_op, std::string group,
                           at::Tensor& out) {
  check_sum(kName, reduce_op);
  handle_of(input, group, kName, "input");
  all_reduce(kName, input, group, out);
  return out;
}

template <const auto& kName>
at::Tensor all_reduce_new(const at::Tensor& input, std::string reduce_op, std::string group) {
  auto out = new_like(input);
  return all_reduce_out<kName>(input, reduce_op, group, out);
}

template <const auto& kName>
at::Tensor& all_reduce_in_place(at::Tensor& input, std::string reduce_op, std::string group) {
  return all_reduce_out<kName>(input, reduce_op, group, input);
}

// The peers read `local` where it is: a card's memory needs no copy to be shared.
at::Tensor& copy_out(const at::Tensor& symm_buffer, const at::Tensor& local, std::string reduce_op,
                     std::string group, at::Tensor& out) {
  constexpr const char* name = "one_shot_all_reduce_copy";
  check_sum(name, reduce_op);
  handle_of(symm_buffer, group, name, "symm_buffer");
  TORCH_CHECK(local.numel() <= symm_buffer.numel(), name, ": local_input has ", local.numel(),
              " elements, and symm_buffer has room for ", symm_buffer.numel());
  all_reduce(name, local, group, out);
  return out;
}

at::Tensor copy_new(const at::Tensor& symm_buffer, const at::Tensor& local, std::string reduce_op,
                    std::string group) {
  auto out = new_like(local);
  return copy_out(symm_buffer, local, reduce_op, group, out);
}

/// Launches a reduce to `root`. `out` is written on the root alone.
void reduce(const char* name, const at::Tensor& input, int root, const std::string& group,
            const at::Tensor& out) {
  const auto members = group_of(group);
  TORCH_CHECK_VALUE(root >= 0 && root < members->getSize(), name, ": root ", root,
                    " does not exist in a group of ", members->getSize(), " ranks");
  CollectivePlan plan;
  Call call = call_of(Collective::reduce, input, name, root);
  call.input = plan.read(input);
  std::vector<at::Tensor> outputs;
  if (root == members->getRank()) {
    check_same_elements(name, input, out);
    call.output = plan.write(out);
    outputs.push_back(out);
  }
  plan.add(call);
  members->launch_plan(name, {input}, std::move(outputs), std::move(plan));
}

at::Tensor& multimem_reduce_out(const at::Tensor& input, std::string reduce_op, std::int64_t root,
                                std::string group, at::Tensor& out) {
  constexpr const char* name = "multimem_one_shot_reduce_out";
  check_sum(name, reduce_op);
  handle_of(input, group, name, "input");
  reduce(name, input, static_cast<int>(root), group, out);
  return out;
}

void tile_reduce(const at::Tensor& in_tile, at::Tensor& out_tile, std::int64_t root, std::string group,
                 std::string reduce_op) {
  constexpr const char* name = "tile_reduce";
  check_sum(name, reduce_op);
  handle_of(in_tile, group, name, "in_tile");
  reduce(name, in_tile, static_cast<int>(root), group, out_tile);
}

void multi_root_tile_reduce(at::ITensorListRef in_tiles, at::Tensor& out_tile, at::IntArrayRef roots,
                            std::string group, std::string reduce_op) {
  constexpr const char* name = "multi_root_tile_reduce";
  check_sum(name, reduce_op);
  TORCH_CHECK_VALUE(in_tiles.size() == roots.size(), name, ": there are ", in_tiles.size(), " tiles and ",
                    roots.size(), " roots");
  std::size_t i = 0;
  for (const auto& tile : in_tiles) {
    handle_of(tile, group, name, "in_tiles");
    reduce(name, tile, static_cast<int>(roots[i++]), group, out_tile);
  }
}

at::Tensor& reduce_scatter_out(at::Tensor& input, std::string group, bool split_last_dim,
                               at::Tensor& output) {
  constexpr const char* name = "reduce_scatter_out";
  const auto members = group_of(group);
  handle_of(input, group, name, "input");
  const std::int64_t size = members->getSize();
  TORCH_CHECK(input.is_contiguous(), name, ": input must be contiguous");
  TORCH_CHECK(output.is_contiguous(), name, ": output must be contiguous");
  TORCH_CHECK(input.dim() > 0, name, ": input must have a dimension");
  TORCH_CHECK(input.numel() == output.numel() * size, name, ": input has ", input.numel(), " elements, and ",
              size, " ranks with outputs of ", output.numel(), " elements need ", output.numel() * size);
  const std::int64_t split = split_last_dim ? input.size(-1) : input.numel();
  const auto bytes = static_cast<std::int64_t>(input.element_size());
  TORCH_CHECK(split * bytes % (size * kPartBytes) == 0, name, ": ",
              split_last_dim ? "the last dimension" : "input", " has ", split * bytes,
              " bytes, which must be divisible by ", kPartBytes, " bytes for each of the ", size, " ranks");
  if (input.numel() == 0) return output;
  CollectivePlan plan;
  Call call = call_of(Collective::reduce_scatter, output, name);
  call.input = split_last_dim ? plan.read_all(input.chunk(size, -1)) : plan.read(input);
  call.output = plan.write(output);
  plan.add(call);
  members->launch_plan(name, {input}, {output}, std::move(plan));
  return output;
}

// Names that are arguments of templates.
constexpr char kOneShot[] = "one_shot_all_reduce";
constexpr char kTwoShot[] = "two_shot_all_reduce";
constexpr char kMultimem[] = "multimem_all_reduce";
constexpr char kMultimemOneShot[] = "multimem_one_shot_all_reduce";

void reduce_scatter_offset(const at::Tensor& input, at::TensorList out, std::string group, std::int64_t dim,
                           at::OptionalIntArrayRef offsets, at::OptionalIntArrayRef dst_ranks,
                           std::string red_op) {
  constexpr const char* name = "nccl_reduce_scatter_offset";
  check_sum(name, red_op);
  handle_of(input, group, name, "input");
  TORCH_CHECK_VALUE(input.dim() == 2 && (dim == 0 || dim == 1), name,
                    ": input must have two dimensions, and dim must be 0 or 1");
  const auto members = group_of(group);
  const std::int64_t size = members->getSize(), length = input.size(dim);
  TORCH_CHECK_VALUE(offsets || length % size == 0, name, ": ", length,
                    " rows or columns cannot be divided by ", size, " ranks: give offsets");
  const std::int64_t blocks = offsets ? static_cast<std::int64_t>(offsets->size()) : size;
  TORCH_CHECK_VALUE(!dst_ranks || static_cast<std::int64_t>(dst_ranks->size()) == blocks, name,
                    ": there are ", blocks, " blocks, and dst_ranks has another length");
  std::size_t owned = 0;
  std::int64_t begin = 0;
  for (std::int64_t i = 0; i < blocks; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const std::int64_t end = offsets ? (*offsets)[at] : (i + 1) * (length / size);
    const std::int64_t root = dst_ranks ? (*dst_ranks)[at] : i % size;
    TORCH_CHECK_VALUE(begin <= end && end <= length, name, ": offsets must ascend, and be at most ", length);
    const bool own = root == members->getRank();
    TORCH_CHECK_VALUE(!own || owned < out.size(), name, ": this rank owns more blocks than out has tensors");
    const auto block = input.narrow(dim, begin, end - begin);
    reduce(name, block, static_cast<int>(root), group, own ? out[owned++] : block);
    begin = end;
  }
  TORCH_CHECK_VALUE(owned == out.size(), name, ": out has ", out.size(), " tensors, and this rank owns ",
                    owned, " blocks");
}

at::Tensor& two_shot_out(at::Tensor& input, std::string reduce_op, std::string group, at::Tensor& output) {
  return all_reduce_out<kTwoShot>(input, reduce_op, group, output);
}

VDEV_LIBRARY_IMPL(symm_mem, vdev::dense_key(), m) {
  m.impl("one_shot_all_reduce", kernel<&all_reduce_new<kOneShot>>());
  m.impl("one_shot_all_reduce_out", kernel<&all_reduce_out<kOneShot>>());
  m.impl("one_shot_all_reduce_copy", kernel<&copy_new>());
  m.impl("one_shot_all_reduce_copy_out", kernel<&copy_out>());
  m.impl("two_shot_all_reduce_", kernel<&all_reduce_in_place<kTwoShot>>());
  m.impl("two_shot_all_reduce_out", kernel<&two_shot_out>());
  m.impl("multimem_all_reduce_", kernel<&all_reduce_in_place<kMultimem>>());
  m.impl("multimem_one_shot_all_reduce", kernel<&all_reduce_new<kMultimemOneShot>>());
  m.impl("multimem_one_shot_all_reduce_out", kernel<&all_reduce_out<kMultimemOneShot>>());
  m.impl("multimem_one_shot_reduce_out", kernel<&multimem_reduce_out>());
  m.impl("reduce_scatter_out", kernel<&reduce_scatter_out>());
  m.impl("nccl_reduce_scatter_offset", kernel<&reduce_scatter_offset>());
  m.impl("tile_reduce", kernel<&tile_reduce>());
  m.impl("multi_root_tile_reduce", kernel<&multi_root_tile_reduce>());
}

}  // namespace
}  // namespace vccl::symmetric
