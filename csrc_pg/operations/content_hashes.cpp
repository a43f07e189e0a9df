#include "csrc_pg/operations/content_hashes.hpp"

#include <utility>

#include "csrc_pg/collectives/content.hpp"

namespace vccl {
namespace {

/// Returns the hash of one buffer of each call. That of one buffer is its own, so that a send and its
/// receive, or a coalesced call and a single one, have the same.
template <class BufferOf>
std::uint64_t hash_of(std::span<const Call> calls, const BufferOf& buffer_of) {
  constexpr std::uint64_t kPrime = 0x100000001b3;
  std::uint64_t hash = 0;
  for (const Call& call : calls) {
    const auto [elements, count] = buffer_of(call);
    if (elements && count > 0) hash = hash * kPrime ^ content_of(call.dtype, elements, count);
  }
  return hash;
}

}  // namespace

std::uint64_t hash_of_inputs(std::span<const Call> calls, const Communicator& communicator) {
  return hash_of(calls, [&](const Call& call) {
    return std::pair<const void*, std::uint64_t>(
        call.input, buffers_of(call, communicator.rank(), communicator.size()).input);
  });
}

std::uint64_t hash_of_outputs(std::span<const Call> calls, const Communicator& communicator) {
  return hash_of(calls, [&](const Call& call) {
    return std::pair<const void*, std::uint64_t>(
        call.output, buffers_of(call, communicator.rank(), communicator.size()).output);
  });
}

std::uint64_t hash_of_message(std::uint8_t dtype, const void* elements, std::uint64_t count) {
  return count == 0 ? 0 : content_of(static_cast<Dtype>(dtype), elements, count);
}

}  // namespace vccl
