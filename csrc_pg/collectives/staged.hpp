// What the staged algorithms have in common: memory that peers cannot map travels through every rank's
// scratch memory, a piece at a time, in two halves that are used in turn. Peers never touch a rank's own
// buffers, so an operation may end while they still read its scratch: that is written again only behind the
// next operation's gate, which nobody passes before all have come to it.
#pragma once

#include <cstddef>

#include "transport/communicator.hpp"

namespace vccl {

// Of a rank's buffer, for one half. Long enough to outweigh its synchronisations, short enough for the
// second-level cache.
inline constexpr std::size_t kPieceBytes = 128 * 1024;

/// The half of a rank's scratch memory that the piece travels in.
inline std::byte* half_of(Peers& peers, int rank, std::size_t piece) {
  return peers.scratch(rank) + piece % 2 * (Peers::kScratchBytes / 2);
}

/// Throws Error(unsupported) for a buffer of more pieces than an operation has phases, about 64 GiB.
inline void check_pieces(std::size_t pieces) {
  if (2 * pieces + 2 >= Peers::kDone)
    throw Error(ErrorCode::unsupported,
                "the buffer is too long for a staged algorithm; use VCCL_ALGO to take the ring");
}

}  // namespace vccl
