// Files that processes hand to each other: nobody can shrink them, and the descriptor is closed.
#include "base/sealed_memory.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "tests/native/check.hpp"

namespace base {
namespace {

TEST(the_size_and_the_seals_are_final) {
  const FileDescriptor file = make_sealed_memory("test", 12345);
  struct stat status;
  CHECK(fstat(file.get(), &status) == 0);
  CHECK_EQ(status.st_size, 12345);
  CHECK_EQ(fcntl(file.get(), F_GET_SEALS), kSeals);
  CHECK(ftruncate(file.get(), 1) != 0);
  CHECK_EQ(errno, EPERM);
  CHECK(ftruncate(file.get(), 99999) != 0);
  CHECK(fcntl(file.get(), F_ADD_SEALS, F_SEAL_WRITE) != 0);
}

TEST(a_descriptor_is_closed_with_its_last_owner) {
  int number = -1;
  {
    FileDescriptor first = make_sealed_memory("test", 1);
    number = first.get();
    const FileDescriptor second = std::move(first);
    CHECK(!first);
    CHECK_EQ(second.get(), number);
    CHECK(fcntl(number, F_GETFD) >= 0);
  }
  CHECK(fcntl(number, F_GETFD) < 0);
  FileDescriptor kept = make_sealed_memory("test", 1);
  number = kept.release();
  CHECK(!kept);
  CHECK_EQ(close(number), 0);
}

TEST(a_failure_names_the_call) {
  rlimit before;
  CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit none = before;
  none.rlim_cur = 0;
  CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
  std::string call;
  int code = 0;
  try {
    make_sealed_memory("test", 1);
  } catch (const SystemError& error) {
    call = error.call;
    code = error.code().value();
  }
  CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK_EQ(call, "memfd_create");
  CHECK_EQ(code, EMFILE);
}

}  // namespace
}  // namespace base

TEST_MAIN
