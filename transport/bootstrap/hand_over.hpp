// What the packets of a hand-over hold: descriptors of shared memory, and the sizes of the regions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "transport/bootstrap/unix_socket.hpp"
#include "transport/communicator.hpp"
#include "transport/support/msgpack.hpp"

namespace vccl {

/// The descriptors of a rank's regions, and the descriptor that shows the end of its process.
struct Handles {
  std::vector<FileDescriptor> regions;
  std::vector<std::uint64_t> bytes;  // the announced size of each region
  FileDescriptor pidfd;
};

/// Decodes a packet and checks its type. Throws the reason that a leader sent when it gave up.
msgpack::Value read_packet(const Channel::Packet& packet, const char* type);

/// Return a packet's list of the sizes of regions, and read it.
msgpack::Array sizes_of(std::span<const Region> regions);
std::vector<std::uint64_t> read_sizes(const msgpack::Value& message);

}  // namespace vccl
