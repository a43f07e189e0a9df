// How a message names a card's memory or an event: which process owns it, and where another process opens it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/descriptor.hpp"
#include "base/peer_file.hpp"
#include "csrc_device/runtime/sharing/ledger.hpp"

namespace vdev {

/// Identifies a pid namespace. A process number means something only there.
struct PidNamespace {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;

  bool operator==(const PidNamespace&) const = default;
};

/// Names the memory of one card of one process. It goes between processes as its bytes.
///
/// The receiver opens the descriptors of the owner through /proc/<pid>/fd. Nobody in the owner's process has
/// to answer, so nothing is waited for, and neither fork() nor a busy interpreter comes in between. It needs
/// no rights of a debugger (only PTRACE_MODE_READ, which Yama's ptrace_scope does not restrict), and it works
/// from one container to another if they share the pid namespace. A server thread that sends descriptors
/// over a socket (SCM_RIGHTS) would have to live in every process that shares, and a forked child that had
/// inherited its socket would keep receivers waiting for a dead owner.
struct MemoryName {
  static constexpr std::uint32_t kVersion = 1;

  char magic[8] = {'v', 'd', 'e', 'v', 'm', 'e', 'm', 0};
  std::uint32_t version = kVersion;
  std::uint32_t physical_card = 0;
  char boot[40] = {};  // the machine's boot_id, which differs between machines
  PidNamespace pid_namespace;
  std::int32_t pid = 0;
  std::uint32_t user = 0;
  std::int32_t memory_fd = -1;
  std::int32_t ledger_fd = -1;
  base::FileIdentity memory;
  base::FileIdentity ledger;
  Nonce nonce{};

  std::string bytes() const;
  /// Throws CardError unless the bytes are those of a name of this version.
  static MemoryName of_bytes(std::string_view bytes);
  /// Fills in what says where the calling process lives: boot, pid_namespace, pid, user.
  void set_process();
  /// Throws CardError, which says what differs, unless this process may open the memory: it has to be of the
  /// same machine, pid namespace and user.
  void check_reachable() const;
  /// Opens one of the owner's files. Throws CardError if the owner has ended, or if the file is not the one
  /// that was announced.
  base::FileDescriptor open(std::int32_t fd, const base::FileIdentity& announced) const;
};
static_assert(sizeof(MemoryName) == 8 + 4 + 4 + 40 + 16 + 4 * 4 + 2 * 24 + 16, "no padding goes out");

}  // namespace vdev
