// Counts the descriptors that the links of a rank take. transport/system/descriptor_limit.hpp checks that the
// process may open as many, and keeps a reserve.
#pragma once

#include "transport/state/group.hpp"

namespace vccl {

/// Counts, before the first link is made, the descriptors of all links and of the strangers that each
/// listener may hold, and requires as many (require_descriptors()). `left` and `right` are how many links
/// come in and go out. Connections to ranks that this rank sends messages to are made later, and checked
/// then. `answers` is whether this rank answers questions of other hosts. Throws Error(system).
void require_link_descriptors(const Group& group, std::size_t left, std::size_t right, bool answers);

}  // namespace vccl
