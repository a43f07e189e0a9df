// The pipe of TORCH_NCCL_DEBUG_INFO_PIPE_FILE.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/descriptor.hpp"

namespace vccl {

/// A pipe in the file system, into which somebody writes to ask this process for a dump. As with
/// ProcessGroupNCCL, it replaces a pipe that an earlier job has left under its name, and any bytes are a
/// request. Unlike there, the pipe is removed with this object.
class DumpPipe {
 public:
  /// Throws Error(invalid) if there is something else at the path, or no pipe can be made there.
  explicit DumpPipe(std::string path);
  DumpPipe(const DumpPipe&) = delete;
  DumpPipe& operator=(const DumpPipe&) = delete;
  ~DumpPipe();

  /// Is ready for reading when somebody has written.
  int descriptor() const noexcept { return pipe_.get(); }
  /// Returns whether somebody has written, and reads all of it.
  bool take_requests() noexcept;

 private:
  const std::string path_;
  base::FileDescriptor pipe_;
};

}  // namespace vccl
