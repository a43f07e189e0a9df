#include "transport/system/machine.hpp"

#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <climits>

#include "base/files.hpp"
#include "base/text.hpp"
#include "transport/system/shared_memory.hpp"

namespace vccl {
namespace {

std::string link_target(const char* path) {
  char target[PATH_MAX];
  const ssize_t length = readlink(path, target, sizeof target);
  return length > 0 ? std::string(target, static_cast<std::size_t>(length)) : std::string();
}

}  // namespace

std::string machine_key() {
  return base::text(base::first_line("/proc/sys/kernel/random/boot_id"), "/",
                    link_target("/proc/self/ns/net"));
}

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = "";
  if (gethostname(name, sizeof name - 1) != 0) throw_system("gethostname");
  return name;
}

std::string pid_namespace() {
  return link_target("/proc/self/ns/pid");
}

std::string random_bytes(std::size_t bytes) {
  std::string result(bytes, '\0');
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t got = getrandom(result.data() + done, bytes - done, 0);
    if (got < 0 && errno != EINTR) throw_system("getrandom");
    if (got > 0) done += static_cast<std::size_t>(got);
  }
  return result;
}

std::string random_hex(std::size_t bytes) {
  static const char digits[] = "0123456789abcdef";
  std::string result;
  for (unsigned char byte : random_bytes(bytes)) {
    result += digits[byte >> 4];
    result += digits[byte & 15];
  }
  return result;
}

}  // namespace vccl
