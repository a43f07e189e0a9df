#include "transport/environment.hpp"

#include <strings.h>

#include <cstdlib>

#include "base/text.hpp"
#include "transport/error.hpp"

namespace vccl {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

LogLevel level(const std::string& value) {
  if (value.empty()) return LogLevel::none;
  if (strcasecmp(value.c_str(), "WARN") == 0) return LogLevel::warn;
  if (strcasecmp(value.c_str(), "INFO") == 0) return LogLevel::info;
  throw Error(ErrorCode::invalid, base::text("VCCL_DEBUG is \"", value, "\"; allowed are WARN and INFO"));
}

}  // namespace

Environment read_environment() {
  Environment environment;
  environment.host_id = variable("VCCL_HOSTID");
  environment.socket_interface = variable("VCCL_SOCKET_IFNAME");
  environment.zmq_library = variable("VCCL_ZMQ_LIBRARY");
  environment.algorithms = variable("VCCL_ALGO");
  environment.debug = level(variable("VCCL_DEBUG"));
  return environment;
}

bool read_share_cpu() {
  const std::string value = variable("VCCL_SHARE_CPU");
  if (value.empty() || value == "0") return false;
  if (value == "1") return true;
  throw Error(ErrorCode::invalid, base::text("VCCL_SHARE_CPU is \"", value, "\"; allowed are 0 and 1"));
}

}  // namespace vccl
