// The rendezvous, in which the ranks of a group show each other their part of a symmetric allocation.
#pragma once

#include <cstddef>
#include <memory>

#include "csrc_pg/process_group/process_group.hpp"
#include "csrc_pg/symmetric/connection.hpp"

namespace vccl::symmetric {

/// Shows `bytes` bytes at `data`, a block of `card`, to all ranks of the group, and maps theirs. All ranks
/// must call this, with as many bytes; it takes at most the group's timeout. `pad_bytes` is the size of a
/// signal pad, which is allocated here. Raises NotImplementedError for a group of several hosts, and
/// DistBackendError, on all ranks, if they differ or one of them could not map a peer's memory.
std::shared_ptr<Connection> meet(ProcessGroupVccl& group, int card, std::byte* data, std::size_t bytes,
                                 std::size_t pad_bytes);

}  // namespace vccl::symmetric
