#include "transport/error.hpp"

#include <cerrno>
#include <cstring>

#include "base/text.hpp"
#include "transport/support/error_text.hpp"

namespace vccl {

Error::Error(ErrorCode code, const std::string& what) : std::runtime_error(valid_text(what)), code_(code) {}

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

void throw_system(const std::string& what) {
  const int number = errno;
  std::string text = base::text(what, " failed: ", std::strerror(number));
  if (number == ENOMEM) text += ". The limit on address space (ulimit -v) or on memory may be too low";
  if (number == EMFILE) text += ". The limit on open files (ulimit -n) may be too low";
  throw Error(ErrorCode::system, text);
}

}  // namespace vccl
