// How a rank makes its links to other hosts: what the user has set, and where the rank listens.
#pragma once

#include <string>
#include <vector>

#include "transport/bootstrap/rank_record.hpp"
#include "transport/variables.hpp"

namespace vccl {

struct LinkSettings {
  std::string address;  // of this rank's network interface: "10.0.0.7", "[2001:db8::7]"
  std::string host;     // the name of this host, for messages
  PortRange ports;
  LinkSecurity security = LinkSecurity::encrypt;
  // How long nothing may be heard of a rank before it counts as dead.
  Milliseconds silence = Variables().link_timeout;

  /// Returns the settings of `rank`, whose variables are given. Throws Error(bootstrap) if the host has no
  /// network interface that fits.
  static LinkSettings of(int rank, const std::vector<RankRecord>& records, const Variables& variables);

  /// How long this rank tries to connect to a rank that listens.
  Milliseconds patience() const { return 3 * silence; }
};

/// What an error says where a connection could not be made.
inline constexpr char kFirewall[] =
    "a firewall may be in the way (VCCL_PORT_RANGE chooses the ports at which ranks listen, and "
    "VCCL_SOCKET_IFNAME the network interface)";

}  // namespace vccl
