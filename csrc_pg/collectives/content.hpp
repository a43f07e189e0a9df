// Compares what ranks have in a buffer that must be the same on all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "csrc_pg/collectives/dtype.hpp"
#include "transport/communicator.hpp"
#include "transport/deadline.hpp"

namespace vccl {

/// Returns a hash of the elements, of their order and of their number. All NaNs of a dtype count as equal,
/// because which one an addition returns depends on the processor's instruction. Reads at about the memory's
/// speed.
std::uint64_t content_of(Dtype dtype, const void* elements, std::size_t count) noexcept;

/// Returns the element as text: "0.25", "-3", "(1, 2)". A dtype that nothing here computes with gives its
/// bits: "0x7f".
std::string element_text(Dtype dtype, const void* element);

/// A difference between the buffers of ranks.
struct ContentDifference {
  std::size_t element = 0;              // the first element that differs
  std::vector<std::uint64_t> contents;  // content_of() each rank's whole buffer
  std::vector<std::string> values;      // each rank's element. All are equal if somebody still writes to it
};

/// Returns what differs between the ranks, or nothing. Every rank of the communicator must call this with the
/// same dtype and count, and every rank gets the same answer. Equal buffers cost one all_gather of a hash,
/// and a difference is searched with one more for each bit of `count`. Throws what run() throws.
std::optional<ContentDifference> find_difference(Communicator& communicator, Dtype dtype,
                                                 const void* elements, std::size_t count,
                                                 const Deadline& deadline);

/// Says which ranks have which element: "element 17 is 4 on ranks 0, 2, and 5 on rank 1".
std::string describe(const ContentDifference& difference, const RankNames& names);

}  // namespace vccl
