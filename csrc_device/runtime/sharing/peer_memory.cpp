#include "csrc_device/runtime/sharing/peer_memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <exception>
#include <vector>

#include "base/fork.hpp"
#include "base/text.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/memory/arena.hpp"
#include "csrc_device/runtime/spoiled_memory.hpp"

namespace vdev {

/// Is a hold on a range of another process's memory.
class PeerRange final : public HeldRange {
 public:
  PeerRange(PeerMemory& all, std::byte* data, int card, SharedRange range, PeerMemory::FileKey peer,
            PeerMemory::FileKey memory)
      : HeldRange(data, card), range_(std::move(range)), peer_(peer), memory_(memory), all_(all) {}
  ~PeerRange() override {
    if (registered_ && !made_.inherited()) all_.drop(*this);
  }

  bool contains(const std::byte* p, std::size_t bytes) const {
    const auto before = static_cast<std::size_t>(p - data());
    return p >= data() && before <= range_.bytes && bytes <= range_.bytes - before;
  }
  Lease lease() const { return {range_.slot, range_.generation}; }

 private:
  friend class PeerMemory;
  const SharedRange range_;
  const PeerMemory::FileKey peer_, memory_;
  PeerMemory& all_;
  const base::ProcessMark made_;
  bool registered_ = false;  // whether it is among the ranges, and holds its block
};

struct PeerMemory::Unused {
  std::vector<Memory> memories;

  ~Unused() {
    for (const Memory& memory : memories) {
      // What lies at these addresses next must not have this memory's failures.
      if (SpoiledMemory::any()) spoiled_memory().renew(memory.base, memory.size);
      ::munmap(memory.base, memory.size);
    }
  }
};

/// The caller of the private functions holds the mutex.
PeerMemory::Peer& PeerMemory::find_or_open(const MemoryName& name) {
  const FileKey key = key_of(name.ledger);
  if (const auto found = peers_.find(key); found != peers_.end()) {
    found->second.ledger->check(name.nonce);
    return found->second;
  }
  auto ledger = std::make_unique<PeerLedger>(name.open(name.ledger_fd, name.ledger), name.nonce);
  Peer& peer = peers_[key];
  peer.ledger = std::move(ledger);
  return peer;
}

PeerMemory::Memory& PeerMemory::find_or_map(Peer& peer, const MemoryName& name, int card) {
  const FileKey key = key_of(name.memory);
  if (const auto found = peer.memories.find(key); found != peer.memories.end()) return found->second;
  const auto file = name.open(name.memory_fd, name.memory);  // checks that its length is the announced one
  Memory memory{map_card_memory(file.get(), name.memory.bytes), name.memory.bytes, card, name.bytes(), 0};
  mapped_.fetch_add(1, std::memory_order_relaxed);
  return peer.memories.emplace(key, std::move(memory)).first->second;
}

/// Returns whether this is the process's only hold on the block.
bool PeerMemory::hold(Peer& peer, Lease lease) {
  // A process has one lock on a slot, whatever the number of its holds.
  const auto [entry, is_new] = peer.holds.try_emplace(lease.slot);
  Holds& holds = entry->second;
  if (is_new) {
    try {
      peer.ledger->hold(lease);
    } catch (...) {
      peer.holds.erase(entry);
      throw;
    }
    holds.generation = lease.generation;
  } else if (holds.generation != lease.generation) {
    throw CardError(kFreedAlready);
  }
  ++holds.count;
  return is_new;
}

void PeerMemory::let_go(Peer& peer, Lease lease) {
  const auto found = peer.holds.find(lease.slot);
  if (--found->second.count != 0) return;
  peer.holds.erase(found);
  peer.ledger->let_go(lease);
}

/// Takes out what nobody holds. Pages of a process that has ended go back to the system with the mapping.
void PeerMemory::close_unused(FileKey peer_key, Unused& unused) {
  const auto peer = peers_.find(peer_key);
  if (peer == peers_.end()) return;
  auto& memories = peer->second.memories;
  std::erase_if(memories, [&](auto& entry) {
    if (entry.second.holds != 0) return false;
    unused.memories.push_back(std::move(entry.second));
    mapped_.fetch_sub(1, std::memory_order_relaxed);
    return true;
  });
  if (memories.empty() && peer->second.holds.empty()) peers_.erase(peer);
}

std::unique_ptr<HeldRange> PeerMemory::receive(const MemoryName& name, const SharedRange& range, int card) {
  const FileKey peer_key = key_of(name.ledger), memory_key = key_of(name.memory);
  std::unique_ptr<PeerRange> held;
  bool first = false;
  {
    Unused unused;  // destroyed without the lock
    std::lock_guard lock(mutex_);
    try {
      Peer& peer = find_or_open(name);
      Memory& memory = find_or_map(peer, name, card);
      if (range.offset > memory.size || range.bytes > memory.size - range.offset) {
        throw CardError(base::text("the message names ", range.bytes, " bytes at ", range.offset,
                                   ", and the memory has ", memory.size));
      }
      held = std::make_unique<PeerRange>(*this, memory.base + range.offset, memory.card, range, peer_key,
                                         memory_key);
      const auto place = ranges_.emplace(held->data(), held.get());
      try {
        first = hold(peer, held->lease());
      } catch (...) {
        ranges_.erase(place);
        throw;
      }
      held->registered_ = true;
      ++memory.holds;
      peer.ledger->take_message(held->lease());
    } catch (const base::FileRefused& error) {
      close_unused(peer_key, unused);
      throw CardError(error.what());
    } catch (...) {
      close_unused(peer_key, unused);
      throw;
    }
  }
  // A failure here concerned the block that this process has held there before.
  if (first && SpoiledMemory::any()) spoiled_memory().renew(held->data(), range.bytes);
  return held;
}

void PeerMemory::drop(const PeerRange& range) {
  Unused unused;  // destroyed without the lock
  std::lock_guard lock(mutex_);
  const auto [first, last] = ranges_.equal_range(range.data());
  ranges_.erase(std::find_if(first, last, [&](const auto& entry) { return entry.second == &range; }));
  Peer& peer = peers_.find(range.peer_)->second;
  --peer.memories.find(range.memory_)->second.holds;
  let_go(peer, range.lease());
  close_unused(range.peer_, unused);
}

void PeerMemory::decline(const MemoryName& name, const SharedRange& range) {
  const Lease lease{range.slot, range.generation};
  Unused unused;  // destroyed without the lock
  std::lock_guard lock(mutex_);
  try {
    Peer& peer = find_or_open(name);
    hold(peer, lease);
    peer.ledger->take_message(lease);
    let_go(peer, lease);
  } catch (const std::exception&) {
    // The owner has ended, or has freed the block: nobody waits for the message.
  }
  close_unused(key_of(name.ledger), unused);
}

std::optional<SharedRange> PeerMemory::pass_on(const std::byte* p, std::size_t bytes) {
  if (mapped_.load(std::memory_order_relaxed) == 0) return std::nullopt;
  std::lock_guard lock(mutex_);
  // A range that begins later does not contain `p`. Ranges may overlap, so the nearest may not do.
  for (auto it = ranges_.upper_bound(p); it != ranges_.begin();) {
    const PeerRange& range = *(--it)->second;
    if (!range.contains(p, bytes)) continue;
    SharedRange message = range.range_;
    message.offset += static_cast<std::uint64_t>(p - range.data());
    message.bytes = bytes;
    peers_.find(range.peer_)->second.ledger->add_message(range.lease());
    return message;
  }
  return std::nullopt;
}

int PeerMemory::card_of(const void* p) {
  // Relaxed: who has a pointer into a mapping has seen it made.
  if (mapped_.load(std::memory_order_relaxed) == 0) return -1;
  const auto* at = static_cast<const std::byte*>(p);
  std::lock_guard lock(mutex_);
  for (const auto& [key, peer] : peers_) {
    for (const auto& [file, memory] : peer.memories) {
      if (at >= memory.base && at < memory.base + memory.size) return memory.card;
    }
  }
  return -1;
}

}  // namespace vdev
