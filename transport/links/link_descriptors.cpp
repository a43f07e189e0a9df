#include "transport/links/link_descriptors.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "transport/connections/zmq_socket.hpp"
#include "transport/system/descriptor_limit.hpp"

namespace vccl {

void require_link_descriptors(const Group& group, std::size_t left, std::size_t right, bool answers) {
  const auto remote = static_cast<std::size_t>(group.size) - group.host.ranks.size();
  const std::size_t listening = ZmqSocket::kListeningDescriptors + ZmqSocket::kStrangers;
  std::size_t needed = ZmqContext::exists() ? 0 : ZmqContext::kDescriptors;
  const std::size_t wakes = std::max(left, right);  // RemoteLinks::wake_
  // A link is two connections.
  needed +=
      wakes + listening + remote + left * 2 * (listening + 1) + right * 2 * ZmqSocket::kConnectingDescriptors;
  if (answers) needed += 1 + listening + remote;  // Answerer
  require_descriptors(
      needed, base::text("the links of ", group.own_text(), " of group ", group.name, " to other hosts"));
}

}  // namespace vccl
