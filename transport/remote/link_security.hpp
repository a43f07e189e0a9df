// What protects the links of a group, as far as the loaded libraries can.
#pragma once

#include "transport/environment.hpp"
#include "transport/support/log.hpp"

namespace vccl {

/// Throws Error(unsupported) if the loaded libzmq cannot protect the handshake of links that `security` wants
/// protected. Says once in this process, whatever VCCL_DEBUG is, if libcrypto is missing: libzmq then
/// protects the blocks too, which is as safe and slower.
void check_link_security(LinkSecurity security, const Log& log);

}  // namespace vccl
