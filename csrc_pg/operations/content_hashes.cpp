#include "csrc_pg/operations/content_hashes.hpp"

#include "csrc_pg/collectives/content.hpp"

namespace vccl {
namespace {

/// Returns the hash of several buffers. That of one buffer is its own, so that a send and its receive, or a
/// coalesced call and a single one, have the same.
std::uint64_t joined(std::uint64_t before, bool first, std::uint64_t next) {
  constexpr std::uint64_t kPrime = 0x100000001b3;
  return first ? next : before * kPrime ^ next;
}

}  // namespace

std::uint64_t hash_of_inputs(std::span<const Call> calls, const Communicator& communicator) {
  std::uint64_t hash = 0;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const auto count = buffers_of(calls[i], communicator.rank(), communicator.size()).input;
    if (calls[i].input && count > 0)
      hash = joined(hash, i == 0, content_of(calls[i].dtype, calls[i].input, count));
  }
  return hash;
}

std::uint64_t hash_of_outputs(std::span<const Call> calls, const Communicator& communicator) {
  std::uint64_t hash = 0;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const auto count = buffers_of(calls[i], communicator.rank(), communicator.size()).output;
    if (calls[i].output && count > 0)
      hash = joined(hash, i == 0, content_of(calls[i].dtype, calls[i].output, count));
  }
  return hash;
}

std::uint64_t hash_of_message(std::uint8_t dtype, const void* elements, std::uint64_t count) {
  return count == 0 ? 0 : content_of(static_cast<Dtype>(dtype), elements, count);
}

}  // namespace vccl
