// Whether a rank of this host has given up the present operation.
#pragma once

#include "transport/state/current_operation.hpp"
#include "transport/state/failure_channel.hpp"

namespace vccl {

/// Throws the failure if a rank of this host has given up the present operation. A failure behind the
/// operation does not count: ranks that have come that far have done their part of this one.
///
/// On another host, a rank may hear of such a failure in its next operation, and nobody here sees its phases.
/// So call check_reads() before anything leaves this host.
void check_given_up(const Group& group, const CurrentOperation& operation, const FailureChannel& failures);

/// Call this when this rank has read other ranks' memory, and before it uses or passes on what it found
/// there. Throws like check_given_up(): what was read in the memory of a rank that has given up may not be
/// what it sent.
void check_reads(const Group& group, const CurrentOperation& operation, const FailureChannel& failures);

}  // namespace vccl
