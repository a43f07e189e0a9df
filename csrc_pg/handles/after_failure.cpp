#include "csrc_pg/handles/after_failure.hpp"

#include <cstdio>
#include <exception>

#include "csrc_device/torch/errors.hpp"
#include "csrc_pg/dumps/dump_files.hpp"

namespace vccl {
namespace {

/// Lets the error reach std::terminate(), which writes the error's text and raises SIGABRT. The error of
/// NCCL's watchdog ends there, too.
[[noreturn]] void end_process(const std::exception_ptr& error) noexcept {
  wait_for_dump();
  std::fputs(
      "[vccl] The process ends, because an operation has failed and TORCH_NCCL_ASYNC_ERROR_HANDLING asks for "
      "the end.\n",
      stderr);
  std::rethrow_exception(error);
}

}  // namespace

void watch_failure(const AfterFailure& wanted, const std::shared_ptr<GroupToAbort>& group, Outcome& outcome) {
  if (!wanted.abort_group && !wanted.end_process) return;
  // The outcome calls back and is not kept: it lives until the callbacks have returned.
  outcome.when_finished([wanted, group, &outcome](const std::exception_ptr& error) {
    if (!error || !is_between_ranks(outcome.error_code())) return;
    // With NCCL, the root of a small broadcast does not wait for the other ranks, and neither does another
    // rank that only gives. Here it does, until they destroy the group as it does itself, which is no reason
    // to end.
    if (outcome.error_code() == ErrorCode::peer_left && group->closing()) return;
    if (wanted.abort_group) group->abort(vdev::text_of(error));
    if (wanted.end_process) end_process(error);
  });
}

}  // namespace vccl
