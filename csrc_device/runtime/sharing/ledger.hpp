// The ledger of a process: shared memory in which every block that it has shared with other processes has an
// entry, by which it sees when nobody uses the block any more.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/descriptor.hpp"
#include "base/peer_file.hpp"

namespace vdev {

/// Names a shared block: its entry in the ledger of the process that owns the block. Entries are used again,
/// with another generation, so that an old message does not name the block that has the entry now.
struct Lease {
  std::uint32_t slot = 0;
  std::uint32_t generation = 0;  // 0 stands for no block

  bool operator==(const Lease&) const = default;
};

/// Holds 16 random bytes by which a ledger is told from every other one.
using Nonce = std::array<std::byte, 16>;

/// Maps a ledger's file. Its length is fixed, so nobody has to believe a length that another process wrote.
///
/// An entry counts the messages that name the block and were not received yet. Who has received one holds a
/// file lock (fcntl) on the byte of the file whose number is the slot's. The system takes the lock away when
/// the process ends, however it ends, and a child of fork() does not inherit it.
class LedgerFile {
 public:
  static constexpr std::uint32_t kSlots = 1u << 20;
  static const std::size_t kBytes;

  /// Maps `file`. Throws base::SystemError.
  explicit LedgerFile(base::FileDescriptor file);
  ~LedgerFile();
  LedgerFile(const LedgerFile&) = delete;
  LedgerFile& operator=(const LedgerFile&) = delete;

  struct Content;
  Content& content() const { return *content_; }
  int fd() const { return file_.get(); }
  /// Changes this process's lock (F_RDLCK, F_WRLCK, F_UNLCK) on the slot's byte, without waiting. Returns
  /// false if another process's lock is in the way, or if the system has no room for a lock.
  bool lock(std::uint32_t slot, int type) const;

 private:
  base::FileDescriptor file_;
  Content* content_;
};

/// Is the ledger of this process, for the blocks of its own cards. Thread-safe.
class Ledger {
 public:
  /// Makes the ledger. Throws CardError when the system refuses.
  Ledger();

  /// Returns a new entry, for a block with no message on its way. Throws CardError if all entries are in use.
  Lease open();
  /// Counts one more message that names the block.
  void add_message(Lease lease);
  /// Takes back the message that add_message() counted, if nobody has received it.
  void take_message(Lease lease);
  /// Ends the entry and returns true if no message is on its way and no other process holds the block.
  /// Afterwards nobody can open a message that names it. Never waits.
  bool try_close(Lease lease);

  int fd() const { return file_.fd(); }
  const base::FileIdentity& identity() const { return identity_; }
  const Nonce& nonce() const { return nonce_; }

 private:
  LedgerFile file_;
  base::FileIdentity identity_;
  Nonce nonce_{};
  std::mutex mutex_;  // guards the members below, and this process's locks on the file
  std::vector<std::uint32_t> free_;
  std::uint32_t used_ = 0;  // the slots from here on were never used
};

/// Returns the ledger of this process, which its first call makes. Throws CardError when the system refuses.
Ledger& process_ledger();

inline constexpr const char* kFreedAlready =
    "its sender has freed the memory already; was the message received more than once?";

/// Is the ledger of another process. Not thread-safe.
class PeerLedger {
 public:
  /// Maps the file. Throws base::FileRefused unless it is a ledger of this version that has the nonce.
  PeerLedger(base::FileDescriptor file, const Nonce& nonce);
  /// Throws base::FileRefused unless the ledger has the nonce.
  void check(const Nonce& nonce) const;

  /// Holds the block until let_go() is called or this process ends. Throws CardError if the block is gone, or
  /// if the owner keeps the entry locked for longer than a few seconds. The caller holds no lease of the
  /// slot.
  void hold(Lease lease);
  void let_go(Lease lease);
  /// These two do what Ledger's do. The caller holds the block.
  void add_message(Lease lease);
  void take_message(Lease lease);

 private:
  std::atomic<std::uint64_t>& entry(Lease lease);
  LedgerFile file_;
};

}  // namespace vdev
