#include "csrc_pg/collectives/direct.hpp"

#include <algorithm>
#include <bit>
#include <string>

#include "transport/past_caches.hpp"

namespace vccl {

std::uint64_t note_of(const Call& call) {
  return call.op == ReduceOp::premul_sum ? std::bit_cast<std::uint64_t>(call.factor) : 0;
}

Direct::Direct(Communicator& communicator, const Call& call)
    : rank_(communicator.rank()),
      size_(communicator.size()),
      element_(size_of(call.dtype)),
      peers_(*communicator.peers()),
      inputs_(size_),
      outputs_(size_) {
  const bool agreed = call.collective != Collective::all_to_all || call.input_counts.empty();
  for (int rank = 0; rank < size_; ++rank) {
    const auto input = peers_.input(rank), output = peers_.output(rank);
    const Buffers wanted = buffers_of(call, rank, size_);
    if (agreed && (input.size() != wanted.input * element_ || output.size() != wanted.output * element_)) {
      communicator.fail(ErrorCode::protocol, "rank " + std::to_string(rank) + " of " + communicator.name() +
                                                 " announced buffers of other lengths than " +
                                                 describe(signature_of(call)) + " has");
      communicator.check();
    }
    inputs_.add(input.data());
    outputs_.add(output.data());
  }
}

PerRank<int> Direct::ranks_from(int rank) const {
  PerRank<int> all(size_);
  for (int step = 0; step < size_; ++step) all.add((rank + step) % size_);
  return all;
}

PerRank<const std::byte*> Direct::inputs(std::size_t offset) const {
  PerRank<const std::byte*> all(size_);
  for (const std::byte* input : inputs_) all.add(input + offset);
  return all;
}

PerRank<std::byte*> Direct::outputs(int rank, std::size_t offset) const {
  PerRank<std::byte*> all(size_);
  for (const int other : ranks_from(rank)) all.add(output(other) + offset);
  return all;
}

double Direct::factor(int rank) const {
  return std::bit_cast<double>(peers_.note(rank));
}

bool are_shared(const Direct& direct, const Parts& parts) {
  constexpr std::size_t kLeast = 1024 * 1024;
  const std::size_t even = parts.total() / std::size_t(direct.size());
  return parts.longest() - even > even / 8 && (parts.longest() - even) * direct.element() >= kLeast;
}

Share share_of(std::size_t count, std::size_t element, int index, int size) {
  const std::size_t line = std::max<std::size_t>(kLineBytes / element, 1);
  const std::size_t lines = (count + line - 1) / line;
  const std::size_t each = lines / std::size_t(size), more = lines % std::size_t(size);
  const auto before = [&](std::size_t i) { return std::min((i * each + std::min(i, more)) * line, count); };
  const std::size_t begin = before(std::size_t(index));
  return {begin, before(std::size_t(index) + 1) - begin};
}

}  // namespace vccl
