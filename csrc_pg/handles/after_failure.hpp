// What a group does after a failure, beside raising the error.
#pragma once

#include <memory>

#include "csrc_pg/communicators/abort_when_interrupted.hpp"
#include "csrc_pg/operations/outcome.hpp"

namespace vccl {

/// Says what else happens when an operation of a group fails. ProcessGroupNCCL does these two under
/// TORCH_NCCL_ASYNC_ERROR_HANDLING.
struct AfterFailure {
  bool abort_group = false;  // the operations of the group that are under way fail, too
  bool end_process = false;  // with the error's text and SIGABRT
};

/// Does what `wanted` says if `outcome` ends with an error that is_between_ranks(). That happens on the
/// thread that ends the operation, so that nobody has to wait for the operation. Dumps of the flight recorder
/// that are being written are finished first.
void watch_failure(const AfterFailure& wanted, const std::shared_ptr<GroupToAbort>& group, Outcome& outcome);

}  // namespace vccl
