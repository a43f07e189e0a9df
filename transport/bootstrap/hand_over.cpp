#include "transport/bootstrap/hand_over.hpp"

#include "base/text.hpp"
#include "transport/support/protocol.hpp"

namespace vccl {

using msgpack::Array;
using msgpack::Map;
using msgpack::Value;

namespace {

// Keeps a packet far below Channel::kMaxPacket: a rank has at most kMaxRegions sizes.
constexpr std::size_t kRanksInPacket = 250;

}  // namespace

Value read_packet(const Channel::Packet& packet, const char* type) {
  Value message = read_record(packet.bytes, -1);
  const std::string& found = message.at("t").as_string();
  if (found == "failed") throw Error(ErrorCode::bootstrap, message.at("why").as_string());
  if (found != type) {
    throw Error(ErrorCode::protocol,
                base::text("hand-over packet \"", found, "\" where \"", type, "\" was expected"));
  }
  return message;
}

Array sizes_of(std::span<const Region> regions) {
  Array sizes;
  for (const Region& region : regions) sizes.emplace_back(identify_shared_memory(region.fd).bytes);
  return sizes;
}

std::vector<std::uint64_t> read_sizes(const Value& message) {
  std::vector<std::uint64_t> sizes;
  for (const Value& size : message.at("bytes").as_array()) sizes.push_back(size.as_uint());
  if (sizes.size() > kMaxRegions) {
    throw Error(ErrorCode::protocol,
                base::text(sizes.size(), " regions were announced; at most ", kMaxRegions, " can be shared"));
  }
  return sizes;
}

void HandOverPackets::add(int rank, Array bytes, std::vector<int> regions, int pidfd) {
  if (pidfd >= 0) regions.push_back(pidfd);
  if (parts_.empty() || parts_.back().descriptors.size() + regions.size() > Channel::kMaxDescriptors ||
      parts_.back().ranks.size() == kRanksInPacket)
    parts_.emplace_back();
  Part& part = parts_.back();
  part.ranks.push_back(Map{{"rank", rank}, {"bytes", std::move(bytes)}, {"pidfd", pidfd >= 0}});
  part.descriptors.insert(part.descriptors.end(), regions.begin(), regions.end());
}

void HandOverPackets::send(Channel& channel, const Deadline& deadline) {
  for (Part& part : parts_) {
    if (part.bytes.empty()) part.bytes = control_message("ranks", {{"ranks", part.ranks}});
    channel.send(part.bytes, part.descriptors, deadline);
  }
}

void read_hand_over(Channel::Packet packet, const std::function<void(int rank, Handles handles)>& take) {
  const Value message = read_packet(packet, "ranks");
  auto next = packet.descriptors.begin();
  const auto take_descriptor = [&] {
    if (next == packet.descriptors.end())
      throw Error(ErrorCode::protocol, "a packet of the hand-over has fewer descriptors than it says");
    return std::move(*next++);
  };
  for (const Value& entry : message.at("ranks").as_array()) {
    Handles handles;
    handles.bytes = read_sizes(entry);
    for (std::size_t i = 0; i < handles.bytes.size(); ++i) handles.regions.push_back(take_descriptor());
    if (entry.at("pidfd").as_bool()) handles.pidfd = take_descriptor();
    take(static_cast<int>(entry.at("rank").as_int(0, INT32_MAX)), std::move(handles));
  }
  if (next != packet.descriptors.end())
    throw Error(ErrorCode::protocol, "a packet of the hand-over has more descriptors than it says");
}

}  // namespace vccl
