// Files of other processes: the announced one is opened, and only if no holder can make accesses fault.
#include "base/peer_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "tests/native/check.hpp"

namespace base {
namespace {

std::string path_of(const FileDescriptor& file) {
  return "/proc/self/fd/" + std::to_string(file.get());
}

TEST(the_announced_file_is_opened_for_reading_and_writing) {
  const FileDescriptor file = make_sealed_memory("test", 4096);
  const FileDescriptor opened = open_announced_file(path_of(file), identify_file(file.get()));
  check_sealed_memory(opened.get());
  CHECK(pwrite(opened.get(), "x", 1, 7) == 1);
  char read = 0;
  CHECK(pread(file.get(), &read, 1, 7) == 1);
  CHECK_EQ(read, 'x');
  CHECK(fcntl(opened.get(), F_GETFD) & FD_CLOEXEC);
}

TEST(another_file_is_not_opened) {
  const FileDescriptor file = make_sealed_memory("test", 4096), other = make_sealed_memory("test", 4096);
  const FileIdentity announced = identify_file(file.get());
  CHECK_THROWS(open_announced_file(path_of(other), announced), FileRefused);
  CHECK_THROWS(open_announced_file(path_of(file), {announced.device, announced.inode, 8192}), FileRefused);
  CHECK_THROWS(open_announced_file("/proc/self/fd/-1", announced), SystemError);
}

TEST(files_of_other_kinds_are_refused) {
  const FileDescriptor program(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  CHECK_THROWS(open_announced_file("/proc/self/exe", identify_file(program.get())), FileRefused);
  const FileDescriptor unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  check_memory_kind(unsealed.get());
  CHECK_THROWS(check_sealed_memory(unsealed.get()), FileRefused);
  CHECK_EQ(fcntl(unsealed.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  CHECK_THROWS(check_sealed_memory(unsealed.get()), FileRefused);
  CHECK_EQ(fcntl(unsealed.get(), F_ADD_SEALS, F_SEAL_SEAL), 0);
  check_sealed_memory(unsealed.get());
  CHECK_THROWS(identify_file(-1), SystemError);
  CHECK_THROWS(check_memory_kind(-1), SystemError);
}

}  // namespace
}  // namespace base

TEST_MAIN
