// What the packets of a hand-over hold: descriptors of shared memory, and the sizes of the regions.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "transport/bootstrap/unix_socket.hpp"
#include "transport/communicator.hpp"
#include "transport/msgpack.hpp"

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

/// The packets that hand several ranks' descriptors over, with as many ranks in each packet as there is room
/// for. The same packets go to every member.
class HandOverPackets {
 public:
  /// Adds a rank. The descriptors must stay open until the packets have been sent.
  void add(int rank, msgpack::Array bytes, std::vector<int> regions, int pidfd);
  void send(Channel& channel, const Deadline& deadline);

 private:
  struct Part {
    msgpack::Array ranks;
    std::vector<int> descriptors;
    std::string bytes;  // the encoded packet, once it has been sent
  };
  std::vector<Part> parts_;
};

/// Reads one of the packets, and calls `take` for each rank in it. Throws Error(protocol) if the descriptors
/// do not fit what the packet says.
void read_hand_over(Channel::Packet packet, const std::function<void(int rank, Handles handles)>& take);

}  // namespace vccl
