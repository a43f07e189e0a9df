// One rank's part of a collective, and everything that follows from it alone: whether it can be done, which
// memory it uses, and which values the ranks must agree on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "csrc_pg/collectives/collective.hpp"
#include "csrc_pg/collectives/dtype.hpp"
#include "csrc_pg/collectives/reduce_op.hpp"
#include "transport/communicator.hpp"
#include "transport/rank_names.hpp"

namespace vccl {

/// An element of a call's input that is NaN or infinite.
struct Nonfinite {
  std::size_t element = 0, count = 0;  // the first one, and how many elements the input has
  std::size_t number = 0, calls = 1;   // which of a batch of calls it is, from 0
};

/// Holds one rank's part of a collective. Pointers need no alignment beyond the element's. Members that a
/// collective has no use for on this rank are not looked at.
///
/// Some collectives have one chunk of a buffer for each rank, in the order of ranks: all_gather and gather in
/// the output, reduce_scatter and scatter in the input, all_to_all in both.
struct Call {
  Collective collective;
  Dtype dtype = Dtype::uint8;
  ReduceOp op = ReduceOp::sum;
  int root = -1;  // broadcast, reduce, gather, scatter: a rank of the communicator
  // The elements of one chunk where the collective has chunks, else of the buffer.
  std::size_t count = 0;
  // The input may equal the output. It may also be this rank's chunk of the output (all_gather, gather) or
  // have the output as this rank's chunk (reduce_scatter, scatter). In all_to_all the two must not overlap.
  // The input is not written to otherwise. In scatter and broadcast only the root has one.
  const void* input = nullptr;
  void* output = nullptr;  // in reduce and gather only the root has one
  // PREMUL_SUM multiplies this rank's elements by it, in float32 for float32 and narrower floats.
  double factor = 1;
  // If the chunks have different lengths, these are the elements of each rank's chunk, instead of `count`.
  // They are read until run() returns. all_gather takes output counts and reduce_scatter input counts, which
  // must be the same on every rank. all_to_all takes both, on every rank or on none; a rank must send to
  // another rank as much as that rank expects.
  std::span<const std::size_t> input_counts = {};
  std::span<const std::size_t> output_counts = {};
  // Which checks the program has switched on, as bits that must be the same on every rank: kChecksContent and
  // kChecksOrder.
  std::uint8_t checks = 0;
  // With kChecksOrder, a hash of what this rank has called in other groups before. It must be the same on
  // every rank that gives another number than 0.
  std::uint32_t order = 0;
  // What is wrong with this rank's input, if it has been looked at and is not finite. No rank runs the call
  // then.
  std::optional<Nonfinite> refused = {};
};

/// The bits of Call::checks.
inline constexpr std::uint8_t kChecksContent = 1, kChecksOrder = 2;

/// Returns the values that the ranks have to agree on. Fields without a meaning for the collective are the
/// same on every rank, whatever the caller left in them. Equal chunks give the same signature whether they
/// are given by `count` or by counts.
Signature signature_of(const Call& call);

/// Returns the signature as text for messages: "all_reduce(float32, 1024 elements, SUM)".
std::string describe(const Signature& signature, const RankNames& names = {});

/// Returns "element 17 of 300 of the input of call 2 of 3 in a batch is NaN or infinite (VCCL_CHECK=nan)",
/// from the refusal that run() makes of Call::refused.
std::string describe_nonfinite(const Refusal& refusal);

/// Throws Error(unsupported | invalid) that names the rank, the call and what is wrong with it.
void check_call(const Communicator& communicator, const Call& call);

/// The lengths of one rank's buffers, in elements; 0 for a buffer that it does not use.
struct Buffers {
  std::size_t input = 0, output = 0;
};
/// Returns the lengths of the buffers of `rank`. The call must be valid.
Buffers buffers_of(const Call& call, int rank, int size);

/// Fails the communicator and throws Error(protocol) if `rank` has announced buffers of other lengths, in
/// bytes, than the call has. Buffers of an all_to_all with splits are checked where the splits are known.
void check_announced(Communicator& communicator, const Call& call, int rank, std::size_t input,
                     std::size_t output);

/// Returns the memory that a rank's neighbours read: the output where results go round the ring, else the
/// input.
std::span<std::byte> window_of(const Call& call, int rank, int size);

/// Returns the bytes of the longest buffer that any rank has, by which an algorithm is chosen: the same on
/// every rank. Returns 0 for all_to_all with splits, whose ranks differ.
std::size_t longest_buffer(const Call& call, int size);

}  // namespace vccl
