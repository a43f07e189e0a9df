// The operators of symmetric memory that move data.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "base/text.hpp"
#include "csrc_device/runtime/activity.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/registration.hpp"
#include "csrc_pg/arguments/torch_types.hpp"
#include "csrc_pg/symmetric/allocations.hpp"
#include "csrc_pg/symmetric/operators.hpp"

namespace vccl::symmetric {
namespace {

using HandlePtr = c10::intrusive_ptr<c10d::symmetric_memory::SymmetricMemory>;

// The group that NVSHMEM's operators mean, which take no group.
constexpr const char* kWorld = "0";

/// Returns the part of a peer's memory that corresponds to `tensor`, which is symmetric.
at::Tensor part_of_peer(const at::Tensor& tensor, std::int64_t peer, const char* name) {
  TORCH_CHECK(tensor.is_contiguous(), name, ": the tensor must be contiguous");
  return handle_of(tensor, kWorld, name, "the tensor")
      ->get_buffer(static_cast<int>(peer), tensor.sizes(), tensor.scalar_type(), tensor.storage_offset());
}

template <const auto& kName>
void put(at::Tensor& tensor, std::int64_t peer) {
  part_of_peer(tensor, peer, kName).copy_(tensor);
}

template <const auto& kName>
void get(at::Tensor& tensor, std::int64_t peer) {
  tensor.copy_(part_of_peer(tensor, peer, kName));
}

/// Is a 64-bit word that ranks signal by: in a signal pad of `handle`, or in other symmetric memory.
struct SignalWord {
  c10::intrusive_ptr<Handle> handle;
  std::size_t offset;
  bool in_pad;

  std::byte* at(const Connection& connection, int rank) const {
    const auto& peer = connection.peers()[static_cast<std::size_t>(rank)];
    return (in_pad ? peer.words() : peer.buffer->data()) + offset;
  }
};

SignalWord signal_word(const at::Tensor& sigpad, const c10::intrusive_ptr<Handle>& of_data,
                       const char* name) {
  TORCH_CHECK(sigpad.nbytes() >= sizeof(std::uint64_t), name, ": sigpad needs room for 8 bytes");
  const auto* word = static_cast<const std::byte*>(sigpad.data_ptr());
  TORCH_CHECK(reinterpret_cast<std::uintptr_t>(word) % sizeof(std::uint64_t) == 0, name,
              ": sigpad must be aligned to 8 bytes");
  if (of_data) {
    const auto& connection = *of_data->connection();
    for (const auto& peer : connection.peers())
      if (word >= peer.words() && word + sizeof(std::uint64_t) <= peer.words() + connection.pad_bytes())
        return {of_data, static_cast<std::size_t>(word - peer.words()), true};
  }
  auto handle = handle_of(sigpad, kWorld, name, "sigpad");
  const auto* own =
      handle->connection()->peers()[static_cast<std::size_t>(handle->get_rank())].buffer->data();
  return {std::move(handle), static_cast<std::size_t>(word - own), false};
}

void put_with_signal(const at::Tensor& tensor, const at::Tensor& sigpad, std::int64_t signal,
                     std::int64_t peer) {
  constexpr const char* name = "nvshmem_put_with_signal";
  part_of_peer(tensor, peer, name).copy_(tensor);
  const auto word = signal_word(sigpad, handle_of(tensor, kWorld, name, "the tensor"), name);
  const int to = static_cast<int>(peer);
  word.handle->launch(name, to, 0, 0, vdev::Start::kAtOnce,
                      [word, to, signal](Connection& connection, const Deadline&) {
                        auto& at = *reinterpret_cast<std::atomic<std::uint64_t>*>(word.at(connection, to));
                        at.store(static_cast<std::uint64_t>(signal), std::memory_order_release);
                      });
}

void wait_for_signal(const at::Tensor& sigpad, std::int64_t signal, std::int64_t peer) {
  constexpr const char* name = "nvshmem_wait_for_signal";
  const auto word = signal_word(sigpad, allocations().handle_with_pad(sigpad.data_ptr()), name);
  const int from = static_cast<int>(peer);
  const auto is_there = [word, signal](const Connection& connection) {
    const auto* at = word.at(connection, connection.members().rank);
    return reinterpret_cast<const std::atomic<std::uint64_t>*>(at)->load(std::memory_order_acquire) ==
           static_cast<std::uint64_t>(signal);
  };
  word.handle->launch(
      name, from, 0, 0, vdev::Start::kByWaiter,
      [word, from, signal, is_there](Connection& connection, const Deadline& deadline) {
        connection.await(
            *reinterpret_cast<Word*>(word.at(connection, connection.members().rank)),
            [&](std::uint32_t) { return is_there(connection); }, from, -1,
            base::text("to signal ", signal, " with nvshmem_put_with_signal"), deadline);
      },
      [&] { return is_there(*word.handle->connection()); });
}

at::Tensor& broadcast(at::Tensor& input, std::int64_t root, std::string group) {
  constexpr const char* name = "nvshmem_broadcast";
  handle_of(input, group, name, "input");
  c10d::BroadcastOptions options;
  options.rootRank = root;
  options.asyncOp = false;
  std::vector<at::Tensor> tensors{input};
  group_of(group)->broadcast(tensors, options);
  return input;
}

at::Tensor& all_to_all(at::Tensor& input, at::Tensor& out, std::string group) {
  constexpr const char* name = "nvshmem_all_to_all";
  handle_of(input, group, name, "input");
  handle_of(out, group, name, "out");
  c10d::AllToAllOptions options;
  options.asyncOp = false;
  std::vector<std::int64_t> equal;
  group_of(group)->alltoall_base(out, input, equal, equal, options);
  return out;
}

at::Tensor& multimem_all_gather_out(const at::Tensor& input, std::string group, at::Tensor& out) {
  constexpr const char* name = "multimem_all_gather_out";
  const auto members = group_of(group);
  handle_of(out, group, name, "out");
  TORCH_CHECK(input.is_contiguous(), name, ": input must be contiguous");
  TORCH_CHECK(out.is_contiguous(), name, ": out must be contiguous");
  TORCH_CHECK(out.dim() == input.dim() && out.size(0) == input.size(0) * members->getSize(), name,
              ": out must have ", members->getSize(), " times the rows of input, which has the shape ",
              input.sizes(), ", and it has the shape ", out.sizes());
  CollectivePlan plan;
  Call call = call_of(Collective::all_gather, input, name);
  call.input = plan.read(input);
  call.output = plan.write(out);
  plan.add(call);
  const vdev::ActivityScope activity(
      [&] { return vdev::ActivityLabel{vdev::ActivityKind::kCollective, "multimem_all_gather_kernel"}; });
  members->launch_plan("multimem_all_gather_kernel", {input}, {out}, std::move(plan));
  return out;
}

void put_and_signal(const at::Tensor& src, const HandlePtr& hdl, std::int64_t peer) {
  hdl->get_buffer(static_cast<int>(peer), src.sizes(), src.scalar_type(), 0).copy_(src);
  hdl->put_signal(static_cast<int>(peer), 0, 0);
}

void wait_and_take(const HandlePtr& hdl, std::int64_t peer) {
  hdl->wait_signal(static_cast<int>(peer), 0, 0);
}

[[noreturn]] void refuse(const char* name, const char* instead) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, name, ": cards have no signals beside those of signal pads and of symmetric tensors. Use ",
      instead, " instead.");
}

void put_with_number(const at::Tensor&, std::int64_t, std::int64_t) {
  refuse("nccl_put_with_signal", "nvshmem_put_with_signal or put_signal");
}

void wait_for_number(const at::Tensor&, std::int64_t) {
  refuse("nccl_wait_for_signal", "nvshmem_wait_for_signal or wait_signal");
}

// Names that are arguments of templates.
constexpr char kNvshmemPut[] = "nvshmem_put";
constexpr char kNvshmemGet[] = "nvshmem_get";
constexpr char kNcclPut[] = "nccl_put";
constexpr char kNcclGet[] = "nccl_get";

VDEV_LIBRARY_IMPL(symm_mem, vdev::dense_key(), m) {
  m.impl("multimem_all_gather_out", kernel<&multimem_all_gather_out>());
  m.impl("nvshmem_put", kernel<&put<kNvshmemPut>>());
  m.impl("nvshmem_get", kernel<&get<kNvshmemGet>>());
  m.impl("nvshmem_put_with_signal", kernel<&put_with_signal>());
  m.impl("nvshmem_wait_for_signal", kernel<&wait_for_signal>());
  m.impl("nvshmem_broadcast", kernel<&broadcast>());
  m.impl("nvshmem_all_to_all", kernel<&all_to_all>());
  m.impl("nccl_put", kernel<&put<kNcclPut>>());
  m.impl("nccl_get", kernel<&get<kNcclGet>>());
  m.impl("nccl_put_signal", kernel<&put_and_signal>());
  m.impl("nccl_put_with_signal", kernel<&put_with_number>());
  m.impl("nccl_wait_for_signal", kernel<&wait_for_number>());
}

// This one has no tensor by which its device could be known. A torch that was built for GPUs has a kernel.
VDEV_LIBRARY_IMPL(symm_mem, c10::DispatchKey::CompositeExplicitAutograd, m) {
  const auto op = c10::Dispatcher::singleton().findSchema({"symm_mem::nccl_wait_signal", ""});
  if (op && !op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd))
    m.impl("nccl_wait_signal", kernel<&wait_and_take>());
}

}  // namespace
}  // namespace vccl::symmetric
