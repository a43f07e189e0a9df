// The nouns of the collectives: which, on what, with which reduction. The numbers travel in signatures.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "transport/communicator.hpp"

namespace vccl {

enum class Collective : std::uint8_t { all_reduce, broadcast, all_gather, barrier };

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
};

enum class ReduceOp : std::uint8_t { sum, avg, product, min, max };

const char* to_string(Collective) noexcept;
const char* to_string(Dtype) noexcept;     // torch's names: "float32", "bool"
const char* to_string(ReduceOp) noexcept;  // "SUM"
std::size_t size_of(Dtype) noexcept;
/// "all_reduce(float32, 1024 elements, SUM)", for messages.
std::string describe(const Signature& signature);

/// One rank's part of a collective. Pointers need no alignment beyond the element's.
struct Call {
  Collective collective;
  Dtype dtype = Dtype::uint8;
  ReduceOp op = ReduceOp::sum;
  int root = -1;          // broadcast: a rank of the communicator
  std::size_t count = 0;  // elements: all_reduce, broadcast: of the buffer; all_gather: of one rank's part
  const void* input = nullptr;  // may equal output; all_gather: may be the own part of output
  void* output = nullptr;       // all_gather: size * count elements
};

/// Runs the call with the algorithm the selector chooses. Blocks until this rank's output is complete and its
/// input may be overwritten. Throws Error; after one the communicator has failed. Error(unsupported) and
/// Error(invalid) are thrown before anything moves and fail nothing.
void run(Communicator& communicator, const Call& call, const Deadline& deadline);

}  // namespace vccl
