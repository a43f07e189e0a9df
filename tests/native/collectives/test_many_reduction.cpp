// Reductions of many inputs at once against the same chain over whole buffers, bit by bit.
#include <cstring>
#include <vector>

#include "csrc_pg/collectives/many_reduction.hpp"
#include "tests/native/check.hpp"
#include "tests/native/collectives/reference.hpp"

using namespace vccl;

namespace {

double factor_of_rank(int rank) {
  return 0.37 * rank - 1.1;
}

// The definition: ((0 + 1) + 2) + ..., with partial results of the whole buffer.
std::vector<std::byte> chain(const Reduction& reduction, const reference::Inputs& inputs, ReduceOp op,
                             std::size_t element, std::size_t count) {
  const int size = int(inputs.size());
  const auto scalar = [&](int rank) {
    return op == ReduceOp::premul_sum ? factor_of_rank(rank) : double(size);
  };
  std::vector<std::byte> result(count * element), partial(count * reduction.partial_size);
  if (size == 1 && reduction.alone) {
    reduction.alone(result.data(), nullptr, inputs[0].data(), count, scalar(0));
    return result;
  }
  if (size == 1) return inputs[0];
  if (size == 2 && reduction.only) {
    reduction.only(result.data(), inputs[0].data(), inputs[1].data(), count, scalar(1));
    return result;
  }
  int rank = 1;
  if (reduction.start)
    reduction.start(partial.data(), nullptr, inputs[0].data(), count, scalar(0));
  else
    reduction.first(partial.data(), inputs[0].data(), inputs[rank++].data(), count, scalar(1));
  for (; rank < size - 1; ++rank)
    reduction.middle(partial.data(), partial.data(), inputs[std::size_t(rank)].data(), count, scalar(rank));
  reduction.last(result.data(), partial.data(), inputs.back().data(), count, scalar(size - 1));
  return result;
}

void check_chain(Dtype dtype, ReduceOp op, int size, std::size_t count) {
  const reference::Case c{.dtype = dtype, .op = op, .count = count, .seed = count};
  const auto inputs = reference::inputs_of(c, size);
  const auto wanted = chain(*find_reduction(dtype, op), inputs, op, size_of(dtype), count);
  const Call call{.collective = Collective::all_reduce, .dtype = dtype, .op = op, .count = count};
  // Beside the inputs (-1), and in the place of each.
  for (int place = -1; place < size; ++place) {
    auto copies = inputs;
    std::vector<std::byte> beside(wanted.size());
    std::vector<const std::byte*> pointers;
    for (const auto& copy : copies) pointers.push_back(copy.data());
    auto& result = place < 0 ? beside : copies[std::size_t(place)];
    ManyReduction reduce(call, size);
    if (op == ReduceOp::premul_sum)
      for (int rank = 0; rank < size; ++rank) reduce.set_factor(rank, factor_of_rank(rank));
    reduce(result.data(), pointers.data(), count);
    if (result != wanted) throw check::Failure("in place " + std::to_string(place) + ": " + c.text(size));
    for (int rank = 0; rank < size; ++rank)
      if (rank != place) CHECK(copies[std::size_t(rank)] == inputs[std::size_t(rank)]);
  }
}

}  // namespace

TEST(many_inputs_are_one_chain) {
  for (const auto dtype : reference::kDtypes)
    for (const auto op : reference::kOps) {
      if (!reference::has_meaning(dtype, op)) continue;
      for (const int size : {1, 2, 3, 4, 7}) check_chain(dtype, op, size, 129);
    }
}

// 8 KiB of partial results, whatever their size.
TEST(where_pieces_end) {
  for (const auto dtype : {Dtype::int8, Dtype::bfloat16, Dtype::float32, Dtype::complex128})
    for (const auto op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::product})
      for (const std::size_t count : {0, 1, 511, 512, 513, 2047, 2048, 2049, 8191, 8192, 8193, 20'000})
        if (reference::has_meaning(dtype, op))
          for (const int size : {2, 3, 5}) check_chain(dtype, op, size, count);
}

TEST(more_ranks_than_fit_without_an_allocation) {
  for (const int size : {16, 17, 40}) check_chain(Dtype::float32, ReduceOp::sum, size, 300);
}

TEST_MAIN
