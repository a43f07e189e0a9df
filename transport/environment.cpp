#include "transport/environment.hpp"

#include <strings.h>

#include <atomic>
#include <cstdlib>

#include "base/text.hpp"
#include "transport/error.hpp"

namespace vccl {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// Relaxed: it is set before the threads that read it are started.
std::atomic<bool> reads_nccl{false};

// Returns the value of the variable with VCCL_, otherwise NCCL's if that is read, otherwise nothing.
std::string either(const char* ours, const char* nccls) {
  std::string value = variable(ours);
  return value.empty() && reads_nccl.load(std::memory_order_relaxed) ? variable(nccls) : value;
}

// Reads a level of NCCL. NCCL also takes VERSION and ABORT, which concern itself, and passes over other
// texts.
LogLevel nccl_level(const std::string& value) {
  if (strcasecmp(value.c_str(), "WARN") == 0) return LogLevel::warn;
  if (strcasecmp(value.c_str(), "INFO") == 0 || strcasecmp(value.c_str(), "TRACE") == 0)
    return LogLevel::info;
  return LogLevel::none;
}

LogLevel level(const std::string& value) {
  if (value.empty())
    return reads_nccl.load(std::memory_order_relaxed) ? nccl_level(variable("NCCL_DEBUG")) : LogLevel::none;
  if (strcasecmp(value.c_str(), "WARN") == 0) return LogLevel::warn;
  if (strcasecmp(value.c_str(), "INFO") == 0) return LogLevel::info;
  throw Error(ErrorCode::invalid, base::text("VCCL_DEBUG is \"", value, "\"; allowed are WARN and INFO"));
}

LinkSecurity security_from(const std::string& value) {
  if (value.empty()) return LinkSecurity::encrypt;
  for (const LinkSecurity security :
       {LinkSecurity::encrypt, LinkSecurity::authenticate, LinkSecurity::none}) {
    if (value == name_of(security)) return security;
  }
  throw Error(ErrorCode::invalid, base::text("VCCL_LINK_SECURITY is \"", value,
                                             "\"; allowed are encrypt, authenticate and none"));
}

}  // namespace

const char* name_of(LinkSecurity security) {
  switch (security) {
    case LinkSecurity::authenticate:
      return "authenticate";
    case LinkSecurity::none:
      return "none";
    default:
      return "encrypt";
  }
}

void also_read_nccl_variables() {
  reads_nccl.store(true, std::memory_order_relaxed);
}

Environment read_environment() {
  Environment environment;
  environment.host_id = either("VCCL_HOSTID", "NCCL_HOSTID");
  environment.socket_interface = either("VCCL_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME");
  environment.zmq_library = variable("VCCL_ZMQ_LIBRARY");
  environment.crypto_library = variable("VCCL_CRYPTO_LIBRARY");
  environment.link_security = security_from(variable("VCCL_LINK_SECURITY"));
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
