#include "sanitizer/processes/journal.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

#include "base/system_calls.hpp"

namespace sanitizer {
namespace {

using Length = std::uint32_t;  // stands before each record
constexpr int kFlags = O_RDWR | O_APPEND;

std::string path_of(std::uint64_t pid, std::uint64_t descriptor) {
  return "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(descriptor);
}

}  // namespace

std::shared_ptr<Journal> Journal::make() {
  const base::FileDescriptor memory(base::make_memory("vccl-races", 0));
  // Opened anew, because memfd_create() does not know O_APPEND.
  base::FileDescriptor file;
  if (memory) file = base::FileDescriptor(base::open_file(path_of(getpid(), memory.get()).c_str(), kFlags));
  if (!file) throw std::system_error(errno, std::generic_category(), "a journal of shared memory");
  return std::shared_ptr<Journal>(new Journal(std::move(file)));
}

std::shared_ptr<Journal> Journal::open(const JournalName& name) {
  base::FileDescriptor file(base::open_file(path_of(name.pid, name.descriptor).c_str(), kFlags));
  struct stat status{};
  if (!file || fstat(file.get(), &status) != 0 || status.st_dev != name.device || status.st_ino != name.inode)
    return nullptr;
  return std::shared_ptr<Journal>(new Journal(std::move(file)));
}

JournalName Journal::name() const {
  struct stat status{};
  fstat(file_.get(), &status);
  return {static_cast<std::uint64_t>(getpid()), static_cast<std::uint64_t>(file_.get()), status.st_dev,
          status.st_ino};
}

void Journal::append(std::string_view record) {
  struct stat status{};
  if (fstat(file_.get(), &status) != 0 || static_cast<std::uint64_t>(status.st_size) > kMostBytes) return;
  std::string bytes(sizeof(Length) + record.size(), '\0');
  const auto length = static_cast<Length>(record.size());
  std::memcpy(bytes.data(), &length, sizeof length);
  std::memcpy(bytes.data() + sizeof length, record.data(), record.size());
  // One call, because another process may append between two.
  while (write(file_.get(), bytes.data(), bytes.size()) < 0 && errno == EINTR) {
  }
}

void Journal::read_new(const std::function<void(std::string_view)>& take) {
  const std::lock_guard lock(mutex_);
  char buffer[1 << 16];
  for (;;) {
    const auto got = pread(file_.get(), buffer, sizeof buffer, static_cast<off_t>(read_));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return;
    read_ += static_cast<std::uint64_t>(got);
    rest_.append(buffer, static_cast<std::size_t>(got));
    std::string_view left = rest_;
    Length length = 0;
    while (left.size() >= sizeof length) {
      std::memcpy(&length, left.data(), sizeof length);
      if (left.size() - sizeof length < length) break;
      take(left.substr(sizeof length, length));
      left.remove_prefix(sizeof length + length);
    }
    rest_.erase(0, rest_.size() - left.size());
  }
}

}  // namespace sanitizer
