// Keeps torch's sockets from asking a name server.
#pragma once

namespace vccl {

/// Lets torch's library write the addresses of sockets as numbers, and not as names.
///
/// TCPStore describes both ends of each of its connections, for its log. For that it calls getnameinfo(),
/// which asks a name server for the name even of 127.0.0.1: torch's sockets have the family IPv6, and
/// /etc/hosts seldom lists ::ffff:127.0.0.1. A name server that does not answer costs 5 to 10 seconds for
/// each rank, one after the other in the process that serves the store. Nothing else in the library calls
/// getnameinfo() for the name of a host.
///
/// Returns whether the library's calls were found. Further calls of this function change nothing.
bool write_addresses_as_numbers() noexcept;

}  // namespace vccl
