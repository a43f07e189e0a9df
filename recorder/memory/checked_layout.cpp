#include "recorder/memory/checked_layout.hpp"

#include "base/text.hpp"
#include "recorder/flight_reader.hpp"

namespace vccl::records {

Layout layout_of(std::span<const std::byte> memory) {
  if (memory.size() < sizeof(Header)) throw FlightRefused("it is too short for a flight recorder");
  const Header& header = header_of(memory);
  // The acquire load pairs with the release store that published the constants below.
  if (header.magic.load(std::memory_order_acquire) != kMagic)
    throw FlightRefused("it does not begin as a flight recorder does");
  if (const auto version = header.version.load(std::memory_order_relaxed); version != kLayoutVersion) {
    throw FlightRefused(base::text("its layout has version ", version,
                                   ", and this version of vccl reads version ", kLayoutVersion));
  }
  const Layout layout{header.entries.load(std::memory_order_relaxed),
                      header.stack_bytes.load(std::memory_order_relaxed)};
  const bool possible =
      layout.entries >= 1 && layout.entries <= kMostEntries &&
      (layout.stack_bytes == 0 || layout.stack_bytes == kOneLine || layout.stack_bytes == kWholeStack);
  if (!possible || layout.bytes() != memory.size() ||
      header.bytes.load(std::memory_order_relaxed) != memory.size())
    throw FlightRefused("its header names lengths that the memory does not have");
  return layout;
}

}  // namespace vccl::records
