// The network address that a rank's links between hosts are reached at.
#pragma once

#include <string>

namespace vccl {

/// An address for a tcp:// endpoint ("10.0.0.7", "[2001:db8::7]") of an interface that is up.
///
/// `wanted` is VCCL_SOCKET_IFNAME in NCCL's form: name prefixes "eth,ib"; "=eth0" for whole names; "^docker"
/// for all but those. When it is empty: any but loopback and container bridges, those only if there is
/// nothing else; loopback at once when `one_machine` says that the hosts are only pretended. IPv4 is
/// preferred. Throws Error(bootstrap) listing the interfaces when none fits.
std::string interface_address(const std::string& wanted, bool one_machine);

}  // namespace vccl
