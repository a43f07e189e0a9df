// What goes wrong between ranks. Torch-free; the process group turns it into torch exceptions.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace vccl {

enum class ErrorCode : std::uint8_t {
  mismatch,     // ranks called different operations, or the same one with different arguments
  timeout,      // a wait reached its deadline
  peer_dead,    // a peer's process is gone
  peer_left,    // a peer destroyed or closed the group while we waited for it
  aborted,      // abort() here
  bootstrap,    // the group could not be put together
  protocol,     // a peer speaks another version, or sent what no peer sends
  unsupported,  // no kernel or algorithm for the call
  invalid,      // the caller's own argument
  system,       // a system call failed
};

/// "timeout", "peer_dead", ...
const char* to_string(ErrorCode code) noexcept;

/// what() names the rank, the group, the operation, both sides of a mismatch, and what to do about it.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& what) : std::runtime_error(what), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace vccl
