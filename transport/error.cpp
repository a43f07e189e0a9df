#include "transport/error.hpp"

namespace vccl {

const char* to_string(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::mismatch:
      return "mismatch";
    case ErrorCode::timeout:
      return "timeout";
    case ErrorCode::peer_dead:
      return "peer_dead";
    case ErrorCode::peer_left:
      return "peer_left";
    case ErrorCode::aborted:
      return "aborted";
    case ErrorCode::bootstrap:
      return "bootstrap";
    case ErrorCode::protocol:
      return "protocol";
    case ErrorCode::unsupported:
      return "unsupported";
    case ErrorCode::invalid:
      return "invalid";
    case ErrorCode::system:
      return "system";
  }
  return "unknown";
}

}  // namespace vccl
