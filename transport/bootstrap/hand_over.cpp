#include "transport/bootstrap/hand_over.hpp"

#include "base/text.hpp"
#include "transport/support/protocol.hpp"

namespace vccl {

using msgpack::Array;
using msgpack::Value;

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
  for (const Region& region : regions) sizes.emplace_back(identify_segment(region.fd).bytes);
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

}  // namespace vccl
