#include "csrc_pg/sparse_all_reduce.hpp"

#include <algorithm>
#include <numeric>
#include <sstream>
#include <string>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "csrc_pg/types.hpp"

namespace vccl {
namespace {

using Numbers = std::vector<std::int64_t>;

// Each rank's numbers, one after the other; as many on every rank.
Numbers gather_numbers(Communicator& communicator, const Deadline& deadline, const Numbers& own) {
  Numbers all(own.size() * static_cast<std::size_t>(communicator.size()));
  Call call{.collective = Collective::all_gather};
  call.dtype = Dtype::int64;
  call.count = own.size();
  call.input = own.data();
  call.output = all.data();
  run(communicator, call, deadline);
  return all;
}

// The rows of all ranks' tensors. `rows`: how many each has.
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

// Every rank has the same numbers before it and comes to the same end: all of them leave.
[[noreturn]] void disagree(Communicator& communicator, const char* operation, const std::string& what) {
  communicator.fail(ErrorCode::mismatch,
                    "ranks of " + communicator.name() + " differ in " + operation + ": " + what);
  communicator.check();
  throw Error(ErrorCode::mismatch, what);
}

void check_same(Communicator& communicator, const Numbers& all, std::size_t each, const char* operation,
                const char* what) {
  for (std::size_t rank = 1; rank * each < all.size(); ++rank) {
    const auto* other = all.data() + rank * each;
    if (std::equal(other, other + each, all.data())) continue;
    std::ostringstream text;
    text << "rank 0 has " << what << " " << at::IntArrayRef(all.data(), each) << ", rank " << rank << " "
         << at::IntArrayRef(other, each);
    disagree(communicator, operation, text.str());
  }
}

// How many elements each rank has.
Numbers agree(Communicator& communicator, const Deadline& deadline, const at::Tensor& own,
              const char* operation) {
  const auto dimensions = gather_numbers(communicator, deadline, {own.sparse_dim(), own.dense_dim()});
  check_same(communicator, dimensions, 2, operation, "sparse and dense dimensions");
  const auto sizes = own.sizes().vec();
  check_same(communicator, gather_numbers(communicator, deadline, sizes), sizes.size(), operation, "shape");
  const auto rows = gather_numbers(communicator, deadline, {own._nnz()});
  // What a peer says is checked once more by gather_rows(): all ranks have to have the same counts.
  if (std::any_of(rows.begin(), rows.end(), [](std::int64_t n) { return n < 0; }))
    disagree(communicator, operation, "a negative number of elements");
  return rows;
}

// What torch's sparse kernels have.
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

void run_sparse(Communicator& communicator, const Deadline& deadline, const at::Tensor& tensor, ReduceOp op,
                const char* operation) {
  at::AutoDispatchBelowAutograd no_autograd;
  const auto type = tensor.scalar_type();
  const auto own = tensor.coalesce();
  const auto rows = agree(communicator, deadline, own, operation);
  const auto indices = gather_rows(communicator, deadline, own._indices().t().contiguous(), rows, operation);
  auto values = gather_rows(communicator, deadline, own._values().contiguous(), rows, operation);

  // As elsewhere, narrow floats are added in float32 and rounded once.
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
  tensor.copy_(sum.to(type));
}

}  // namespace

Plan::Body sparse_all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op, const char* operation) {
  TORCH_CHECK_VALUE(tensor.defined(), operation, ": the tensor is undefined");
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.is_sparse() && tensor.device().is_cpu(),
                              "Backend vccl does not support ", operation, " of layout ", tensor.layout(),
                              " on ", tensor.device(), ": of sparse tensors, COO ones on the CPU are");
  TORCH_CHECK_NOT_IMPLEMENTED(is_supported(tensor.scalar_type()), "Backend vccl does not support ", operation,
                              " of ", tensor.scalar_type(), ": torch cannot add them");
  const auto reduction = to_reduce_op(op, to_dtype(tensor.scalar_type(), operation), operation);
  TORCH_CHECK_NOT_IMPLEMENTED(reduction == ReduceOp::sum || reduction == ReduceOp::avg,
                              "Backend vccl does not support ", operation, " with ", to_string(reduction),
                              ": elements that a tensor does not hold count as zero; SUM and AVG are");
  return [tensor, reduction, operation](Communicator& communicator, const Deadline& deadline) {
    run_sparse(communicator, deadline, tensor, reduction, operation);
  };
}

}  // namespace vccl
