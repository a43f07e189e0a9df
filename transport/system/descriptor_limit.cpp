#include "transport/system/descriptor_limit.hpp"

#include <dirent.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/lack.hpp"
#include "base/text.hpp"
#include "transport/error.hpp"

namespace vccl {
namespace {

// Descriptors kept free for name look-ups, random numbers, and other threads of the program.
constexpr std::size_t kSpare = 8;

/// Returns how many descriptors below `limit` are open. Descriptors that were opened before the limit was
/// lowered may lie above it, and do not count.
std::size_t open_descriptors(std::size_t limit) {
  DIR* folder = opendir("/proc/self/fd");
  if (!folder) return errno == EMFILE ? limit : 0;  // 0: there is no /proc, so the number is unknown
  std::size_t open = 0;
  while (const dirent* entry = readdir(folder)) {
    char* end = nullptr;
    const unsigned long number = std::strtoul(entry->d_name, &end, 10);
    if (end != entry->d_name && number < limit) ++open;
  }
  closedir(folder);
  return open - 1;  // the folder's own descriptor does not count
}

}  // namespace

void require_descriptors(std::size_t needed, const std::string& what) {
  if (base::lacks(base::Lack::descriptors))
    throw Error(ErrorCode::system,
                base::text(what, " need file descriptors, but this process can open no more (",
                           std::strerror(errno), "). Raise the limit: ulimit -n"));
  rlimit allowed{};
  if (getrlimit(RLIMIT_NOFILE, &allowed) != 0 || allowed.rlim_cur == RLIM_INFINITY) return;
  const auto limit = static_cast<std::size_t>(allowed.rlim_cur);
  const std::size_t open = open_descriptors(limit);
  const std::size_t wanted = needed + kSpare;
  if (open + wanted <= limit) return;
  throw Error(ErrorCode::system, base::text(what, " need ", wanted, " file descriptors, ", kSpare,
                                            " of them as a reserve, but this process has ", open, " of the ",
                                            limit, " open that it may open. Raise the limit, at least to ",
                                            open + wanted, ": ulimit -n"));
}

}  // namespace vccl
