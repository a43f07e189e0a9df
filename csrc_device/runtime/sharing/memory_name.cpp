#include "csrc_device/runtime/sharing/memory_name.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/files.hpp"
#include "base/text.hpp"
#include "csrc_device/runtime/error.hpp"

namespace vdev {
namespace {

PidNamespace own_pid_namespace() {
  struct stat status;
  if (::stat("/proc/self/ns/pid", &status) != 0) return {};
  return {status.st_dev, status.st_ino};
}

std::string ended(std::int32_t pid) {
  return base::text(
      "the process ", pid,
      " that owns it has ended or has given it up. That process has to live, and to keep what it "
      "has sent, until the receiver has got it");
}

}  // namespace

std::string MemoryName::bytes() const {
  std::string all(sizeof *this, '\0');
  std::memcpy(all.data(), this, sizeof *this);
  return all;
}

MemoryName MemoryName::of_bytes(std::string_view bytes) {
  MemoryName name;
  const bool known = bytes.size() >= offsetof(MemoryName, physical_card) &&
                     std::memcmp(bytes.data(), name.magic, sizeof name.magic) == 0;
  if (!known) throw CardError("its bytes name nothing of a card");
  std::uint32_t version;
  std::memcpy(&version, bytes.data() + offsetof(MemoryName, version), sizeof version);
  if (version != kVersion || bytes.size() != sizeof name) {
    throw CardError(base::text("it has version ", version, " and ", bytes.size(),
                               " bytes, and this version of vccl reads version ", kVersion, " with ",
                               sizeof name, ". Use one version of vccl on both sides"));
  }
  std::memcpy(&name, bytes.data(), sizeof name);
  return name;
}

void MemoryName::set_process() {
  const std::string id = base::first_line("/proc/sys/kernel/random/boot_id");
  std::memcpy(boot, id.data(), std::min(id.size(), sizeof boot));
  pid_namespace = own_pid_namespace();
  pid = ::getpid();
  user = ::geteuid();
}

void MemoryName::check_reachable() const {
  MemoryName own;
  own.set_process();
  if (std::memcmp(boot, own.boot, sizeof boot) != 0) {
    throw CardError(
        "it lies in the memory of another machine. Between machines, torch.distributed.send() and recv() "
        "copy tensors");
  }
  if (user != own.user) {
    throw CardError(base::text("its sender belongs to user ", user, ", and the receiver to user ", own.user,
                               ". Processes of different users share nothing of a card"));
  }
  if (pid_namespace != own.pid_namespace) {
    throw CardError(
        base::text("its sender, process ", pid,
                   ", is in another pid namespace, such as another container. Start both with one "
                   "pid namespace. Tensors can also be sent as tensor.cpu()"));
  }
}

base::FileDescriptor MemoryName::open(std::int32_t fd, const base::FileIdentity& announced) const {
  const std::string path = base::text("/proc/", pid, "/fd/", fd);
  try {
    auto file = base::open_announced_file(path, announced);
    struct stat status;
    if (::fstat(file.get(), &status) != 0 || status.st_uid != ::geteuid())
      throw CardError(base::text(path, " belongs to another user"));
    base::check_sealed_memory(file.get());
    return file;
  } catch (const base::SystemError& error) {
    const int code = error.code().value();
    if (code == ENOENT || code == ESRCH) throw CardError(ended(pid));
    std::string text = error.what();
    if (code == EACCES || code == EPERM)
      text += ". A process that is protected from others of its user (PR_SET_DUMPABLE) shares nothing";
    throw CardError(text);
  } catch (const base::FileRefused& error) {
    // The number of the process, or that of the descriptor, belongs to another one by now.
    throw CardError(base::text(ended(pid), " (", error.what(), ")"));
  }
}

}  // namespace vdev
