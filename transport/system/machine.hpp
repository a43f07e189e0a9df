// The identity of this machine, and random bytes from its kernel.
#pragma once

#include <cstddef>
#include <string>

namespace vccl {

/// Returns the kernel's boot id and the network namespace, because abstract sockets do not cross network
/// namespaces. Ranks with equal keys may share memory if the proof by mapping succeeds.
std::string machine_key();
/// Returns the name that this host has on the network, for messages.
std::string host_name();

/// Returns the process-id namespace. In equal namespaces a process has the same number.
std::string pid_namespace();

/// Returns `bytes` random bytes from the kernel.
std::string random_bytes(std::size_t bytes);
/// Returns `bytes` random bytes from the kernel as hexadecimal digits, two for each byte.
std::string random_hex(std::size_t bytes);

}  // namespace vccl
