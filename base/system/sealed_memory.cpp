#include "base/sealed_memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "base/system_calls.hpp"

namespace base {
namespace {

void check(bool done, const char* call) {
  if (!done) throw SystemError(call, errno);
}

}  // namespace

FileDescriptor make_sealed_memory(const char* name, std::size_t size) {
  FileDescriptor file(make_memory(name, MFD_ALLOW_SEALING));
  check(static_cast<bool>(file), "memfd_create");
  check(set_length(file.get(), static_cast<off_t>(size)) == 0, "ftruncate of shared memory");
  check(fcntl(file.get(), F_ADD_SEALS, kSeals) == 0, "sealing shared memory");
  return file;
}

}  // namespace base
