#include "transport/state/lost_ranks.hpp"

namespace vccl {

void LostRanks::add(int rank) noexcept {
  const auto entry = static_cast<std::uint32_t>(rank) + 1;
  for (std::atomic<std::uint32_t>& place : record_.entries) {
    std::uint32_t found = 0;
    // Nothing else is published with an entry, so the order of other accesses does not matter.
    if (place.compare_exchange_strong(found, entry, std::memory_order_relaxed) || found == entry) return;
  }
}

std::optional<int> LostRanks::at(int index) const noexcept {
  if (index >= kMost) return std::nullopt;
  const std::uint32_t entry = record_.entries[index].load(std::memory_order_relaxed);
  // A peer writes the list, so an entry that is no rank is not trusted. It ends the list.
  if (entry == 0 || entry > static_cast<std::uint32_t>(size_)) return std::nullopt;
  return static_cast<int>(entry) - 1;
}

bool LostRanks::contains(int rank) const noexcept {
  for (int i = 0; const auto lost = at(i); ++i)
    if (*lost == rank) return true;
  return false;
}

}  // namespace vccl
