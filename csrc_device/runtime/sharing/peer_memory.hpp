// The memory of other processes that this process has mapped.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "csrc_device/runtime/process_sharing.hpp"
#include "csrc_device/runtime/sharing/ledger.hpp"
#include "csrc_device/runtime/sharing/memory_name.hpp"

namespace vdev {

class PeerRange;

/// Holds the cards' memory and the ledgers of other processes, each mapped once, for as long as this process
/// holds a range there. Thread-safe. One mutex guards everything, because closing a ledger takes away all
/// locks that this process has on the file: it must not happen while another thread opens the same ledger.
class PeerMemory {
 public:
  std::unique_ptr<HeldRange> receive(const MemoryName& name, const SharedRange& range, int card);
  void decline(const MemoryName& name, const SharedRange& range);
  /// Returns a message about a range that this process holds, or nothing if it holds none there.
  std::optional<SharedRange> pass_on(const std::byte* p, std::size_t bytes);
  /// Returns the card in whose memory, as mapped here, `p` lies, or -1.
  int card_of(const void* p);

 private:
  friend class PeerRange;
  using FileKey = std::pair<std::uint64_t, std::uint64_t>;  // device and inode

  /// Is the memory of one card, as mapped here.
  struct Memory {
    std::byte* base = nullptr;
    std::size_t size = 0;
    int card = -1;
    std::string name;  // the bytes of the MemoryName by which it was opened
    std::size_t holds = 0;
  };
  /// Is what this process holds of one block.
  struct Holds {
    std::uint32_t generation = 0;
    std::size_t count = 0;
  };
  /// Is one other process.
  struct Peer {
    std::unique_ptr<PeerLedger> ledger;
    std::map<FileKey, Memory> memories;
    std::unordered_map<std::uint32_t, Holds> holds;  // by slot
  };
  /// Takes memories that nobody holds any more, and unmaps them when it is destroyed, without the mutex.
  struct Unused;

  static FileKey key_of(const base::FileIdentity& file) { return {file.device, file.inode}; }
  Peer& find_or_open(const MemoryName& name);
  Memory& find_or_map(Peer& peer, const MemoryName& name, int card);
  bool hold(Peer& peer, Lease lease);
  void let_go(Peer& peer, Lease lease);
  void close_unused(FileKey peer_key, Unused& unused);
  void drop(const PeerRange& range);

  std::mutex mutex_;
  std::map<FileKey, Peer> peers_;                             // by their ledgers
  std::multimap<const std::byte*, const PeerRange*> ranges_;  // by the address at which they begin
  std::atomic<std::size_t> mapped_{0};                        // how many memories are mapped
};

}  // namespace vdev
