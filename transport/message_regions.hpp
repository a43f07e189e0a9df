// Memory that messages are read from in place although it came after the group was made: a rank announces the
// descriptor in the control segment, and peers open it through /proc.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "transport/liveness.hpp"
#include "transport/message_channel.hpp"
#include "transport/segment.hpp"

namespace vccl {

/// This rank's. Thread-safe; find() takes no lock.
class AddedRegions {
 public:
  struct Place {
    std::uint32_t region;
    std::uint64_t offset;
  };

  /// Announces it in `table`, ours, unless there is one with its base. False, and nothing done, if there are
  /// `most`. Throws what Communicator::add_region() does.
  bool add(const Region& region, RegionTable& table, std::size_t most);
  /// The region that all of `bytes` lies in. One that was found has been announced before.
  std::optional<Place> find(std::span<const std::byte> bytes) const;

 private:
  std::mutex mutex_;
  std::atomic<std::uint32_t> count_{0};
  std::array<Region, kMaxRegions> regions_;
  // For ranks that are threads of this process: they find it by its file, and are shown it where it is.
  std::array<std::shared_ptr<Mapping>, kMaxRegions> mappings_;
};

/// Those of one peer, as this rank knows them. Each is mapped when the first message from there is taken. Not
/// thread-safe.
class PeerRegions {
 public:
  /// Whether the peer has announced such a region, as large as that.
  bool holds(const RegionTable& table, std::uint32_t region, std::uint64_t offset, std::uint64_t bytes);
  /// Maps a region that holds() has seen, once; says why if that fails. `process` is the peer's.
  std::optional<std::string> map(std::uint32_t region, const PeerProcess& process);
  /// Null if it could not be mapped.
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
