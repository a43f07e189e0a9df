#include "transport/state/window.hpp"

#include <functional>

namespace vccl {

// std::less orders unrelated pointers, which < need not.
const Region* region_of(std::span<const Region> regions, std::span<const std::byte> bytes) {
  const std::less_equal<const std::byte*> before;
  for (const Region& region : regions) {
    const std::byte* end = region.base + region.size;
    if (before(region.base, bytes.data()) && before(bytes.data() + bytes.size(), end)) return &region;
  }
  return nullptr;
}

Window window_in(std::span<const Region> regions, std::span<std::byte> bytes) {
  const bool mapped = !bytes.empty() && region_of(regions, bytes);
  return {bytes, mapped ? WindowKind::mapped : WindowKind::staged};
}

}  // namespace vccl
