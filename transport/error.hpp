// The errors of the transport. They are free of torch: the process group turns them into torch exceptions.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace vccl {

enum class ErrorCode : std::uint8_t {
  mismatch,     // ranks called different operations, or the same operation with different arguments
  timeout,      // a wait reached its deadline
  peer_dead,    // a peer's process has ended
  peer_left,    // a peer destroyed or closed the group while this rank waited for it
  aborted,      // a rank called abort(), gave up an operation or was interrupted
  bootstrap,    // the communicator could not be made
  protocol,     // a peer has another version, or sent something that no correct peer sends
  unsupported,  // no kernel or algorithm exists for the call
  invalid,      // the caller passed a wrong argument
  system,       // a system call failed
};

/// "timeout", "peer_dead", ...
const char* to_string(ErrorCode code) noexcept;

/// An error whose what() names the rank, the group, the operation, both sides of a mismatch, and what to do
/// about it.
class Error : public std::runtime_error {
 public:
  /// Replaces bytes of `what` that are not valid UTF-8, because the text may come from another process and
  /// ends up in Python.
  Error(ErrorCode code, const std::string& what);
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

/// Throws Error(system) with `what`, which names the call that failed, and errno's text.
[[noreturn]] void throw_system(const std::string& what);

}  // namespace vccl
