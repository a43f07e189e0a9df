// Memory that was added after the communicator was made, and from which peers read messages in place. A rank
// announces the descriptor in the control memory, and peers open it through /proc.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "transport/shared/message_channel.hpp"
#include "transport/system/peer_process.hpp"
#include "transport/system/shared_memory.hpp"

namespace vccl {

/// The regions that this rank has added. Thread-safe. find() takes no lock.
class AddedRegions {
 public:
  struct Place {
    std::uint32_t region;
    std::uint64_t offset;
  };

  /// Announces the region in `table`, which is this rank's, unless a region with its base is there already.
  /// Returns false and does nothing if there are `most` regions. Throws what Communicator::add_region()
  /// throws.
  bool add(const Region& region, RegionTable& table, std::size_t most);
  /// Returns the place of `bytes` if one region contains all of them. Such a region has been announced
  /// already.
  std::optional<Place> find(std::span<const std::byte> bytes) const;

 private:
  std::mutex mutex_;
  std::atomic<std::uint32_t> count_{0};
  std::array<Region, kMaxRegions> regions_;
  // These keep the mappings for ranks that are threads of this process, which find a mapping by its file.
  std::array<std::shared_ptr<Mapping>, kMaxRegions> mappings_;
};

/// The regions that one peer has added, as this rank knows them. Each region is mapped when the first message
/// that lies in it is taken. Not thread-safe.
class PeerRegions {
 public:
  /// Returns whether the peer has announced this region, and whether the region is large enough.
  bool holds(const RegionTable& table, std::uint32_t region, std::uint64_t offset, std::uint64_t bytes);
  /// Maps a region for which holds() has returned true, and tries only once. Returns why that failed, or
  /// nothing. `process` is the peer's.
  std::optional<std::string> map(std::uint32_t region, const PeerProcess& process);
  /// Returns the address of these bytes, or null if the region could not be mapped.
  const std::byte* place(std::uint32_t region, std::uint64_t offset, std::uint64_t bytes) const;

 private:
  struct Known {
    AnnouncedRegion announced;
    bool tried = false;
    std::shared_ptr<Mapping> mapping;
  };
  std::array<std::optional<Known>, kMaxRegions> known_;
};

}  // namespace vccl
