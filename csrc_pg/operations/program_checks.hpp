// What VCCL_CHECK asks to check of a program.
#pragma once

#include <atomic>
#include <cstddef>
#include <optional>
#include <string>

#include "csrc_device/torch/program_line.hpp"
#include "csrc_pg/collectives/call.hpp"
#include "transport/communicator.hpp"
#include "transport/deadline.hpp"
#include "transport/variables.hpp"

namespace vccl {

/// Returns the checks that this process makes. The first call reads the variable, and throws Error(invalid)
/// for a value that is not allowed.
const CheckVariables& program_checks();

/// Returns where the buffer that the call reads has NaN or infinity, for Call::refused. `number` and `calls`
/// say which of a batch of calls it is.
std::optional<Nonfinite> nonfinite_input(const Communicator& communicator, const Call& call,
                                         std::size_t number, std::size_t calls);

/// Looks for NaN and infinity in the buffer that the call has written. If there is one, fails the
/// communicator, because the peers must not wait for this rank, and throws Error(invalid) with the rank, the
/// call and the element.
void check_finite_output(Communicator& communicator, const Call& call, std::size_t number, std::size_t calls);

/// Does the same for a tensor that is sent to rank `to`.
void check_finite_message(Communicator& communicator, const Signature& message, const void* elements, int to);

/// Compares the buffer that the call has written between the ranks, if it must be the same on all of them:
/// after all_reduce, all_gather and broadcast. Every rank must call this. If a rank differs, fails the
/// communicator and throws Error(mismatch), which says which element is what on which rank.
void check_content(Communicator& communicator, const Call& call, const Deadline& deadline, std::size_t number,
                   std::size_t calls);

/// Says on stderr that nobody has waited for an operation, if nobody has. A handle has one of these if the
/// check is switched on.
class LeakCheck {
 public:
  /// `who` is this rank, and `what` the operation: "all_reduce (number 7)". Notes the line of the call.
  LeakCheck(std::string who, std::string what);
  ~LeakCheck();
  LeakCheck(const LeakCheck&) = delete;
  LeakCheck& operator=(const LeakCheck&) = delete;

  /// Call this when somebody has waited, or has asked for a future or whether the operation has ended.
  void note_use() noexcept { used_.store(true, std::memory_order_relaxed); }

 private:
  const std::string who_, what_;
  const vdev::PythonLine& line_;
  std::atomic<bool> used_{false};
};

}  // namespace vccl
