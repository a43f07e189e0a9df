#include "csrc_pg/tasks/sparse_all_reduce.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <sstream>
#include <string>
#include <tuple>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/SparseTensorUtils.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "base/text.hpp"
#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/registration.hpp"
#include "csrc_pg/arguments/torch_types.hpp"
#include "csrc_pg/collectives/collective.hpp"
#include "csrc_pg/collectives/run.hpp"
#include "csrc_pg/tasks/gather_numbers.hpp"

namespace vccl {
namespace {

// Returns the rows of all ranks' tensors. `rows` has the count of rows of each rank.
at::Tensor gather_rows(Communicator& communicator, const Deadline& deadline, const at::Tensor& own,
                       const Numbers& rows, const char* operation) {
  auto sizes = own.sizes().vec();
  std::size_t row = 1;
  for (std::size_t d = 1; d < sizes.size(); ++d) row *= static_cast<std::size_t>(sizes[d]);
  sizes[0] = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  auto all = at::empty(sizes, own.options());
  std::vector<std::size_t> counts;
  for (const auto number : rows) counts.push_back(static_cast<std::size_t>(number) * row);
  Call call{.collective = Collective::all_gather};
  call.dtype = to_dtype(own.scalar_type(), operation);
  call.input = own.data_ptr();
  call.output = all.data_ptr();
  call.output_counts = counts;
  run(communicator, call, deadline);
  return all;
}

// Fails the communicator. Every rank has gathered the same numbers, so that all ranks come to the same
// result.
[[noreturn]] void disagree(Communicator& communicator, const char* operation, const std::string& what) {
  communicator.fail(ErrorCode::mismatch, base::text("the ranks of group ", communicator.name(), " differ in ",
                                                    operation, ": ", what));
  communicator.check();
  throw Error(ErrorCode::mismatch, what);
}

void check_same(Communicator& communicator, const Numbers& all, std::size_t each, const char* operation,
                const char* what) {
  for (std::size_t rank = 1; rank * each < all.size(); ++rank) {
    const auto* other = all.data() + rank * each;
    if (std::equal(other, other + each, all.data())) continue;
    std::ostringstream text;
    text << communicator.names().rank(0) << " has " << what << " " << at::IntArrayRef(all.data(), each)
         << ", " << communicator.names().rank(static_cast<int>(rank)) << " " << at::IntArrayRef(other, each);
    disagree(communicator, operation, text.str());
  }
}

// Returns how many elements each rank has.
Numbers agree(Communicator& communicator, const Deadline& deadline, const at::Tensor& own,
              const char* operation) {
  const auto dimensions = gather_numbers(communicator, deadline, {own.sparse_dim(), own.dense_dim()});
  check_same(communicator, dimensions, 2, operation, "sparse and dense dimensions");
  const auto sizes = own.sizes().vec();
  check_same(communicator, gather_numbers(communicator, deadline, sizes), sizes.size(), operation, "shape");
  const auto rows = gather_numbers(communicator, deadline, {own._nnz()});
  // gather_rows() checks the counts once more, because all ranks must have the same ones.
  if (std::any_of(rows.begin(), rows.end(), [](std::int64_t n) { return n < 0; }))
    disagree(communicator, operation, "a negative number of elements");
  return rows;
}

// Returns whether torch has sparse kernels for the type.
bool is_supported(c10::ScalarType type) {
  switch (type) {
    case at::kUInt16:
    case at::kUInt32:
    case at::kUInt64:
      return false;
    default:
      return !c10::isFloat8Type(type);
  }
}

bool is_narrow(c10::ScalarType type) {
  return c10::isFloatingType(type) && c10::elementSize(type) < sizeof(float);
}

// Returns the coalesced sum or mean. `tensor` and the result are on the CPU.
at::Tensor reduced(Communicator& communicator, const Deadline& deadline, const at::Tensor& tensor,
                   ReduceOp op, const char* operation) {
  const auto type = tensor.scalar_type();
  const auto own = tensor.coalesce();
  const auto rows = agree(communicator, deadline, own, operation);
  const auto indices = gather_rows(communicator, deadline, own._indices().t().contiguous(), rows, operation);
  auto values = gather_rows(communicator, deadline, own._values().contiguous(), rows, operation);

  // As in all reductions, narrow floats are added in float32 and rounded once.
  if (is_narrow(type)) values = values.to(at::kFloat);
  auto sum = at::sparse_coo_tensor(indices.t(), values, tensor.sizes(), values.options().layout(at::kSparse))
                 .coalesce();
  if (op == ReduceOp::avg) {
    const auto size = communicator.size();
    if (c10::isIntegralType(type, false))
      sum._values().div_(size, "trunc");
    else
      sum._values().div_(size);
  }
  return sum.to(type);
}

// Holds a sparse tensor of a card, and what the task needs to read it and to give it its result without an
// operator of the card. Such an operator would wait for the current stream, which may itself wait for the
// task.
class OnCard {
 public:
  // Call this on the caller's thread. The object keeps the indices and values, because the host may rebind
  // the tensor before the task runs.
  OnCard(const at::Tensor& tensor, const c10::Stream& own_stream)
      : tensor_(tensor),
        indices_(tensor._indices()),
        values_(tensor._values().resolve_conj().resolve_neg()),
        own_stream_(own_stream),
        callers_stream_(c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device())) {}

  // Returns a CPU tensor over the same memory.
  at::Tensor shown() const {
    return at::_sparse_coo_tensor_unsafe(shown(indices_), shown(values_), tensor_.sizes(),
                                         at::TensorOptions().dtype(values_.dtype()).layout(at::kSparse),
                                         tensor_.is_coalesced());
  }

  void replace_by(const at::Tensor& result) const {
    auto* impl = at::sparse::get_sparse_impl(tensor_);
    impl->set_indices_and_values_unsafe(placed(result._indices()), placed(result._values()));
    impl->set_coalesced(true);
  }

 private:
  static at::Tensor shown(const at::Tensor& part) {
    return at::from_blob(part.data_ptr(), part.sizes(), part.strides(),
                         at::TensorOptions().dtype(part.dtype()));
  }

  at::Tensor placed(const at::Tensor& part) const {
    // The task runs in the order of its own stream, so free memory of that stream can be used now. The
    // caller's stream uses the result, and must have passed before the memory is reused.
    c10::StreamGuard guard(own_stream_);
    const auto from = part.contiguous();
    auto to = at::empty(from.sizes(), from.options().device(tensor_.device()));
    if (from.nbytes() == 0) return to;
    std::memcpy(to.data_ptr(), from.data_ptr(), from.nbytes());
    c10::impl::VirtualGuardImpl(tensor_.device().type())
        .recordDataPtrOnStream(to.storage().data_ptr(), callers_stream_);
    return to;
  }

  at::Tensor tensor_, indices_, values_;
  c10::Stream own_stream_, callers_stream_;
};

}  // namespace

ReduceOp check_sparse(const at::Tensor& tensor, const c10d::ReduceOp& op, const char* operation) {
  TORCH_CHECK_VALUE(tensor.defined(), operation, ": the tensor is undefined");
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.is_sparse() && (tensor.is_cpu() || vdev::is_card(tensor.device())),
                              "Backend vccl does not support ", operation, " of layout ", tensor.layout(),
                              " on ", tensor.device(), ": of sparse tensors, COO ones are");
  TORCH_CHECK_NOT_IMPLEMENTED(is_supported(tensor.scalar_type()), "Backend vccl does not support ", operation,
                              " of ", tensor.scalar_type(), ": torch cannot add them");
  const auto reduction = to_reduce_op(op, to_dtype(tensor.scalar_type(), operation), operation);
  TORCH_CHECK_NOT_IMPLEMENTED(reduction == ReduceOp::sum || reduction == ReduceOp::avg,
                              "Backend vccl does not support ", operation, " with ", to_string(reduction),
                              ": elements that a tensor does not hold count as zero; SUM and AVG are");
  return reduction;
}

CollectivePlan::Body sparse_all_reduce(const at::Tensor& tensor, ReduceOp reduction,
                                       const std::optional<c10::Stream>& stream, const char* operation) {
  if (!stream)
    return [tensor, reduction, operation](Communicator& communicator, const Deadline& deadline) {
      at::AutoDispatchBelowAutograd no_autograd;
      tensor.copy_(reduced(communicator, deadline, tensor, reduction, operation));
    };
  at::AutoDispatchBelowAutograd no_autograd;
  return [on_card = OnCard(tensor, *stream), reduction, operation](Communicator& communicator,
                                                                   const Deadline& deadline) {
    at::AutoDispatchBelowAutograd no_autograd;
    on_card.replace_by(reduced(communicator, deadline, on_card.shown(), reduction, operation));
  };
}

namespace {

using Result = std::tuple<std::vector<at::Tensor>, c10::intrusive_ptr<c10d::Work>>;

// torch has this operator for sparse tensors only on the CPU and on CUDA, so it is registered for vdev alone.
Result all_reduce_of_card(at::TensorList tensors, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                          const c10::intrusive_ptr<c10d::ReduceOp>& op, const std::optional<at::Tensor>&,
                          bool async, std::int64_t timeout) {
  auto list = tensors.vec();
  c10d::AllreduceOptions options;
  options.reduceOp = *op;
  options.timeout = std::chrono::milliseconds(timeout);
  options.asyncOp = async;
  auto work = group->getBackend(vdev::device_type())->allreduce_sparse(list, options);
  return {std::move(list), std::move(work)};
}

VDEV_LIBRARY_IMPL(c10d, vdev::sparse_key(), m) {
  if (vdev::pose() == vdev::Pose::vdev) m.impl("allreduce_", &all_reduce_of_card);
}

}  // namespace

}  // namespace vccl
