// What a test reads of its own process's stderr.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>

#include "transport/system/shared_memory.hpp"

namespace vccl {

/// What this process has written to stderr since. It goes to a file as long as the object lives.
class Captured {
 public:
  Captured() : file_(memfd_create("stderr", MFD_CLOEXEC)), before_(fcntl(2, F_DUPFD_CLOEXEC, 0)) {
    dup2(file_.get(), 2);
  }
  ~Captured() { dup2(before_.get(), 2); }
  std::string text() const {
    std::ifstream stream("/proc/self/fd/" + std::to_string(file_.get()));
    return {std::istreambuf_iterator<char>(stream), {}};
  }

 private:
  FileDescriptor file_, before_;
};

}  // namespace vccl
