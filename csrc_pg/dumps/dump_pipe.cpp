#include "csrc_pg/dumps/dump_pipe.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/system_calls.hpp"
#include "base/text.hpp"
#include "transport/error.hpp"

namespace vccl {
namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(ErrorCode::invalid,
              base::text("TORCH_NCCL_DEBUG_INFO_PIPE_FILE asks for the pipe ", path, ", but ", why,
                         "; name the beginning of a path at which a pipe can be made, as in /tmp/dump_now_"));
}

}  // namespace

DumpPipe::DumpPipe(std::string path) : path_(std::move(path)) {
  struct stat found;
  if (::lstat(path_.c_str(), &found) == 0 && !S_ISFIFO(found.st_mode))
    refuse(path_, "something that is no pipe is there");
  if (::unlink(path_.c_str()) != 0 && errno != ENOENT) refuse(path_, std::strerror(errno));
  if (::mkfifo(path_.c_str(), 0600) != 0) refuse(path_, std::strerror(errno));
  // With a writer of its own, the pipe does not end when another writer closes it. poll() would never wait
  // again then.
  pipe_ = base::FileDescriptor(base::open_file(path_.c_str(), O_RDWR | O_NONBLOCK));
  if (!pipe_) {
    const int code = errno;
    ::unlink(path_.c_str());
    refuse(path_, std::strerror(code));
  }
}

bool DumpPipe::take_requests() noexcept {
  std::array<char, 128> bytes;
  bool found = false;
  while (::read(pipe_.get(), bytes.data(), bytes.size()) > 0) found = true;
  return found;
}

DumpPipe::~DumpPipe() {
  struct stat own, there;
  if (::fstat(pipe_.get(), &own) != 0 || ::lstat(path_.c_str(), &there) != 0) return;
  // Another job may have put its pipe there since.
  if (own.st_dev == there.st_dev && own.st_ino == there.st_ino) ::unlink(path_.c_str());
}

}  // namespace vccl
