// What follows from a call alone: whether it can be done, which memory it uses, what its ranks must agree on.
#pragma once

#include <cstddef>
#include <span>

#include "csrc_pg/collectives/types.hpp"

namespace vccl {

/// What the ranks have to agree on. Fields without a meaning for the collective are the same on every rank,
/// whatever the caller left in them. Equal parts are the same call however they are given.
Signature signature_of(const Call& call);

/// Throws Error(unsupported | invalid) that names the rank, the call and what is wrong with it.
void check_call(const Communicator& communicator, const Call& call);

/// Why find_reduction() has none, and what to do instead.
const char* why_no_reduction(Dtype dtype, ReduceOp op) noexcept;

/// The lengths of this rank's buffers, in elements; 0 for one that it does not use. The call is valid.
struct Buffers {
  std::size_t input = 0, output = 0;
};
Buffers buffers_of(const Call& call, int rank, int size);

/// What a rank's neighbours read of it: the output where results go round, else the input.
std::span<std::byte> window_of(const Call& call, int rank, int size);

/// Bytes of the longest buffer that a rank has, for choosing an algorithm: the same on every rank. 0 for
/// all_to_all with splits, whose ranks differ.
std::size_t longest_buffer(const Call& call, int size);

}  // namespace vccl
