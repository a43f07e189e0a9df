// The nouns of the collectives: which, on what, with which reduction. The numbers travel in signatures.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "transport/communicator.hpp"

namespace vccl {

enum class Collective : std::uint8_t {
  all_reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  reduce,
  gather,
  scatter,
  all_to_all,
  barrier,
  message,  // one send and its receive; not run(): see transport/messages.hpp
};

enum class Dtype : std::uint8_t {
  boolean,
  int8,
  int16,
  int32,
  int64,
  uint8,
  uint16,
  uint32,
  uint64,
  float16,
  bfloat16,
  float32,
  float64,
  float8_e4m3fn,
  float8_e5m2,
  float8_e4m3fnuz,  // this one and the next two can be moved, not reduced
  float8_e5m2fnuz,
  float8_e8m0fnu,
  complex64,
  complex128,
};

enum class ReduceOp : std::uint8_t { sum, avg, product, min, max, band, bor, bxor, premul_sum };

const char* to_string(Collective) noexcept;
const char* to_string(Dtype) noexcept;     // torch's names: "float32", "bool"
const char* to_string(ReduceOp) noexcept;  // "SUM"
std::size_t size_of(Dtype) noexcept;
bool is_reduction(Collective) noexcept;
bool has_root(Collective) noexcept;
/// "all_reduce(float32, 1024 elements, SUM)", for messages.
std::string describe(const Signature& signature);

/// One rank's part of a collective. Pointers need no alignment beyond the element's. What a collective has no
/// use for on this rank is not looked at.
///
/// The collectives that move parts have one part for each rank, in the order of ranks: the output of
/// all_gather and gather, the input of reduce_scatter and scatter, both of all_to_all.
struct Call {
  Collective collective;
  Dtype dtype = Dtype::uint8;
  ReduceOp op = ReduceOp::sum;
  int root = -1;          // broadcast, reduce, gather, scatter: a rank of the communicator
  std::size_t count = 0;  // elements: of one part where there are parts, of the buffer elsewhere
  // May equal the output, or be the own part of it (all_gather, gather), or hold it as the own part
  // (reduce_scatter, scatter). all_to_all: apart from the output. Not written to otherwise. scatter,
  // broadcast: only the root's.
  const void* input = nullptr;
  void* output = nullptr;  // reduce, gather: only the root's
  double factor = 1;       // PREMUL_SUM: of this rank's elements; in float32 for float32 and narrower ones
  // Parts of different lengths: the elements of each rank's part, instead of `count`; read until run()
  // returns. all_gather: of the output, the same on every rank. reduce_scatter: of the input, the same on
  // every rank. all_to_all: of both, on every rank or on none; what a rank sends to another must be what that
  // one expects.
  std::span<const std::size_t> input_counts = {};
  std::span<const std::size_t> output_counts = {};
};

/// Runs the call with the algorithm the selector chooses. Blocks until this rank's output is complete and its
/// input may be overwritten. Throws Error; after one the communicator has failed. Error(unsupported) and
/// Error(invalid) are thrown before anything moves and fail nothing.
void run(Communicator& communicator, const Call& call, const Deadline& deadline);

}  // namespace vccl
