#include "transport/messages/message_regions.hpp"

#include <functional>
#include <utility>

#include "base/text.hpp"

namespace vccl {
namespace {

/// Opens the file that the peer announced. The descriptor's number is the peer's claim, but the process is
/// known. In a /proc of another pid namespace, the process number may mean another process.
FileDescriptor open_announced(const AnnouncedRegion& announced, const PeerProcess& process) {
  const std::string folder = process.descriptors();
  if (folder.empty()) throw Error(ErrorCode::unsupported, "its process is in another pid namespace");
  return open_announced_memory(base::text(folder, announced.fd), announced.file);
}

}  // namespace

bool AddedRegions::add(const Region& region, RegionTable& table, std::size_t most) {
  std::lock_guard lock(mutex_);
  const std::uint32_t number = count_.load(std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < number; ++i) {
    if (regions_[i].base == region.base) return true;
  }
  if (number >= most) return false;
  const FileIdentity file = identify_shared_memory(region.fd);
  mappings_[number] = adopt_shared_memory(region.fd, region.base, region.size, region.owner);
  regions_[number] = region;
  table.regions[number] = {region.fd, 0, file};
  table.count.store(number + 1, std::memory_order_release);
  // This store pairs with the load in find(): a thread that finds the region may offer messages that lie
  // there, which peers look up in the table.
  count_.store(number + 1, std::memory_order_release);
  return true;
}

std::optional<AddedRegions::Place> AddedRegions::find(std::span<const std::byte> bytes) const {
  // std::less orders unrelated pointers, which < need not do.
  const std::less_equal<const std::byte*> before;
  const std::uint32_t count = count_.load(std::memory_order_acquire);
  for (std::uint32_t i = 0; i < count; ++i) {
    const Region& region = regions_[i];
    if (before(region.base, bytes.data()) && before(bytes.data() + bytes.size(), region.base + region.size)) {
      return Place{i, static_cast<std::uint64_t>(bytes.data() - region.base)};
    }
  }
  return std::nullopt;
}

bool PeerRegions::holds(const RegionTable& table, std::uint32_t region, std::uint64_t offset,
                        std::uint64_t bytes) {
  if (region >= kMaxRegions) return false;
  std::optional<Known>& known = known_[region];
  if (!known) {
    if (region >= table.count.load(std::memory_order_acquire)) return false;
    // The entry is copied once and used from the copy, because the table is memory that a peer writes.
    known = Known{table.regions[region]};
  }
  const std::uint64_t size = known->announced.file.bytes;
  return offset <= size && bytes <= size - offset;
}

std::optional<std::string> PeerRegions::map(std::uint32_t region, const PeerProcess& process) {
  Known& known = *known_[region];
  if (std::exchange(known.tried, true)) return std::nullopt;
  try {
    known.mapping =
        map_shared_memory(open_announced(known.announced, process).get(), known.announced.file.bytes);
  } catch (const Error& error) {
    return error.what();
  }
  return std::nullopt;
}

const std::byte* PeerRegions::place(std::uint32_t region, std::uint64_t offset, std::uint64_t bytes) const {
  const Mapping* mapping = known_[region]->mapping.get();
  // A rank that is a thread of the peer's process uses the peer's mapping, which may be shorter than the
  // file.
  if (!mapping || offset > mapping->size() || bytes > mapping->size() - offset) return nullptr;
  return mapping->base() + offset;
}

}  // namespace vccl
