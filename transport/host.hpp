// Which host this is, and how many cores of it this process may use.
#pragma once

#include <string>

namespace vccl {

/// The kernel's boot id and the network namespace, which abstract sockets do not cross. Ranks with equal keys
/// may share memory if the proof by mapping succeeds.
std::string machine_key();

/// The process-id namespace: equal ones show the same process under the same number.
std::string pid_namespace();

/// Cores that this process may run on: its affinity mask, cut by the control group's CPU quota. At least 1.
int usable_cores();

/// `bytes` random bytes from the system.
std::string random_bytes(std::size_t bytes);
/// The same in hexadecimal digits, two a byte.
std::string random_hex(std::size_t bytes);

}  // namespace vccl
