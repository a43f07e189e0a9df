// Ring all_reduce of few elements between hosts: every rank's elements go once round the ring, and every rank
// reduces all of them itself.
//
// This sends more bytes than a reduce-scatter and an all-gather, in half the steps. Between hosts a step
// costs as much as many kilobytes do. All ranks reduce in the order of ranks, so they get the same bits.
#include <cstring>

#include "csrc_pg/collectives/buffers/per_rank.hpp"
#include "csrc_pg/collectives/kernels/many_reduction.hpp"
#include "csrc_pg/collectives/ring/chain.hpp"
#include "csrc_pg/collectives/ring/ring.hpp"

namespace vccl {

namespace {

// A block has a rank's elements behind its factor of PREMUL_SUM, so that they stay aligned.
constexpr std::size_t kFactorBytes = 16;

}  // namespace

bool ring_gathers(const Communicator& communicator, const Call& call) {
  // A longer block is sent without a copy, so its sender would have to wait until it has been read.
  constexpr std::size_t kLongest = 1024 - kFactorBytes;
  return communicator.host_count() > 1 && call.count * size_of(call.dtype) <= kLongest;
}

void ring_gathered_all_reduce(Communicator& communicator, const Call& call) {
  const int size = communicator.size(), position = communicator.ring_position();
  const std::size_t bytes = call.count * size_of(call.dtype), block = kFactorBytes + bytes;
  const std::size_t stride = (block + 63) / 64 * 64;
  std::vector<std::byte> blocks(static_cast<std::size_t>(size) * stride);
  const auto block_of = [&](int rank) { return blocks.data() + static_cast<std::size_t>(rank) * stride; };

  std::byte* const own = block_of(communicator.rank());
  std::memcpy(own, &call.factor, sizeof call.factor);
  std::memcpy(own + kFactorBytes, call.input, bytes);
  std::memcpy(communicator.right().reserve(), own, block);
  communicator.right().commit(block);
  for (int step = 1; step < size; ++step) {
    const std::byte* theirs = communicator.left().take_committed(block);
    std::memcpy(block_of(communicator.ring_rank((position - step + size) % size)), theirs, block);
    if (step < size - 1)
      pass_on(communicator, theirs, block);
    else
      communicator.left().release();
  }

  ManyReduction reduce(call, size);
  PerRank<const std::byte*> inputs(size);
  for (int rank = 0; rank < size; ++rank) {
    inputs.add(block_of(rank) + kFactorBytes);
    double factor = 0;
    std::memcpy(&factor, block_of(rank), sizeof factor);
    if (call.op == ReduceOp::premul_sum) reduce.set_factor(rank, factor);
  }
  reduce(static_cast<std::byte*>(call.output), inputs.data(), call.count);
}

}  // namespace vccl
