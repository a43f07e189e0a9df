// What protects the links of a group, as far as the loaded libraries can.
#pragma once

#include <string>

#include "transport/state/group.hpp"
#include "transport/support/log.hpp"
#include "transport/variables.hpp"

namespace vccl {

/// Throws Error(unsupported) if the loaded libzmq cannot protect the handshake of links that `security` wants
/// protected. Says once in this process, whatever VCCL_DEBUG is, if libcrypto is missing: libzmq then
/// protects the blocks too, which is as safe and slower.
void check_link_security(LinkSecurity security, const Log& log);
/// Returns whether this process can protect frames so. If not, libzmq protects the blocks.
bool can_protect_blocks(LinkSecurity security);
/// Throws Error(invalid) if `theirs`, the name of what `rank` protects its links with, is not the name of
/// `ours`. The two ranks could not read each other's blocks.
void check_same_security(const Group& group, LinkSecurity ours, int rank, const std::string& theirs);

}  // namespace vccl
