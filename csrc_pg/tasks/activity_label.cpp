#include "csrc_pg/tasks/activity_label.hpp"

#include <algorithm>
#include <memory>

#include "csrc_pg/operations/profiler_names.hpp"

namespace vccl {
namespace {

struct Sum {
  std::size_t bytes = 0, elements = 0;
};

Sum sum_of(const std::vector<at::Tensor>& tensors) {
  Sum sum;
  for (const auto& tensor : tensors) {
    // The elements of a sparse tensor are counted when the ranks have exchanged their numbers.
    if (tensor.layout() != at::kStrided) continue;
    sum.bytes += tensor.nbytes();
    sum.elements += static_cast<std::size_t>(tensor.numel());
  }
  return sum;
}

double bus_factor(c10d::OpType type, int size) {
  using c10d::OpType;
  const double share = static_cast<double>(size - 1) / size;  // a rank's own chunk uses no link
  switch (type) {
    case OpType::ALLREDUCE:
    case OpType::ALLREDUCE_COALESCED:
    case OpType::_ALLREDUCE_SPARSE:
      return 2 * share;
    case OpType::ALLGATHER:
    case OpType::_ALLGATHER_BASE:
    case OpType::ALLGATHER_COALESCED:
    case OpType::REDUCE_SCATTER:
    case OpType::_REDUCE_SCATTER_BASE:
    case OpType::ALLTOALL:
    case OpType::ALLTOALL_BASE:
    case OpType::GATHER:
    case OpType::SCATTER:
      return share;
    default:
      return 1;
  }
}

/// Returns the bytes of the longest buffer that a rank has. In gather and scatter only the root has it.
std::size_t longest_buffer(const Request& request, int size) {
  const std::size_t in = sum_of(request.inputs).bytes, out = sum_of(request.outputs).bytes;
  const auto chunks = static_cast<std::size_t>(size);
  if (request.type == c10d::OpType::GATHER) return in * chunks;
  if (request.type == c10d::OpType::SCATTER) return out * chunks;
  return std::max(in, out);
}

const char* dtype_of(const Request& request) {
  const auto& tensors = request.outputs.empty() ? request.inputs : request.outputs;
  return c10::toString(tensors.empty() ? at::kByte : tensors.front().scalar_type());
}

}  // namespace

vdev::ActivityLabel label_of(std::span<const Request> requests, const char* name,
                             const LabelledGroup& group) {
  auto what = std::make_shared<vdev::Communication>();
  what->collective = record_of(name);
  what->group = group.name;
  what->description = group.description;
  what->rank = group.rank;
  what->size = group.size;
  what->sequence = group.sequence;
  what->dtype = dtype_of(requests.front());
  // A label has one factor: the mean, weighted by the bytes.
  std::size_t bytes = 0;
  double on_bus = 0;
  for (const auto& request : requests) {
    const auto longest = longest_buffer(request, group.size);
    bytes += longest;
    on_bus += static_cast<double>(longest) * bus_factor(request.type, group.size);
    what->elements_in += sum_of(request.inputs).elements;
    what->elements_out += sum_of(request.outputs).elements;
  }
  what->bus_factor =
      bytes == 0 ? bus_factor(requests.front().type, group.size) : on_bus / static_cast<double>(bytes);
  return {vdev::ActivityKind::kCollective, run_of(name), bytes, std::move(what)};
}

}  // namespace vccl
