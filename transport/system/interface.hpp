// The network address at which a rank's links between hosts are reached.
#pragma once

#include <string>

namespace vccl {

/// Returns the address of an interface that is up, for a tcp:// endpoint: "10.0.0.7" or "[2001:db8::7]".
///
/// `wanted` is VCCL_SOCKET_IFNAME in NCCL's form: "eth,ib" has name prefixes, "=eth0" has whole names, and
/// "^docker" excludes names. If `wanted` is empty, loopback is taken when `one_machine` says that all hosts
/// are really one machine. Otherwise any interface but loopback is taken, and a container bridge only if
/// there is no other. IPv4 is preferred. Throws Error(bootstrap), which lists the interfaces, if none fits.
std::string interface_address(const std::string& wanted, bool one_machine);

}  // namespace vccl
