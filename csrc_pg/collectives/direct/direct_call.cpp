#include "csrc_pg/collectives/direct/direct_call.hpp"

#include <algorithm>
#include <bit>
#include <string>

namespace vccl {

std::uint64_t factor_bits(const Call& call) {
  return call.op == ReduceOp::premul_sum ? std::bit_cast<std::uint64_t>(call.factor) : 0;
}

DirectCall::DirectCall(Communicator& communicator, const Call& call)
    : rank_(communicator.rank()),
      size_(communicator.size()),
      element_(size_of(call.dtype)),
      peers_(*communicator.all_peers()),
      inputs_(size_),
      outputs_(size_) {
  for (int rank = 0; rank < size_; ++rank) {
    const auto input = peers_.input(rank), output = peers_.output(rank);
    check_announced(communicator, call, rank, input.size(), output.size());
    inputs_.add(input.data());
    outputs_.add(output.data());
  }
}

PerRank<int> DirectCall::ranks_from(int rank) const {
  PerRank<int> all(size_);
  for (int step = 0; step < size_; ++step) all.add((rank + step) % size_);
  return all;
}

PerRank<const std::byte*> DirectCall::inputs(std::size_t offset) const {
  PerRank<const std::byte*> all(size_);
  for (const std::byte* input : inputs_) all.add(input + offset);
  return all;
}

PerRank<std::byte*> DirectCall::outputs(int rank, std::size_t offset) const {
  PerRank<std::byte*> all(size_);
  for (const int other : ranks_from(rank)) all.add(output(other) + offset);
  return all;
}

double DirectCall::factor(int rank) const {
  return std::bit_cast<double>(peers_.factor(rank));
}

bool divides_evenly(const DirectCall& direct, const Chunks& chunks) {
  constexpr std::size_t kLeast = 1024 * 1024;
  const std::size_t even = chunks.total() / std::size_t(direct.size());
  return chunks.longest() - even > even / 8 && (chunks.longest() - even) * direct.element() >= kLeast;
}

}  // namespace vccl
