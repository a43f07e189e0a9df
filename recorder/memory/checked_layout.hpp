// What a reader believes of the header of a flight recorder's memory.
#pragma once

#include <cstddef>
#include <span>

#include "recorder/memory/layout.hpp"

namespace vccl::records {

inline const Header& header_of(std::span<const std::byte> memory) {
  return *reinterpret_cast<const Header*>(memory.data());
}

inline const StackSlot& stack_slot(std::span<const std::byte> memory, const Layout& layout,
                                   std::size_t place) {
  return *reinterpret_cast<const StackSlot*>(memory.data() + layout.stacks_at() + place * layout.stack_bytes);
}

/// Returns the layout that the header describes, which fits into the memory. Throws FlightRefused. Another
/// process may change the header at any time, so each look begins with this.
Layout layout_of(std::span<const std::byte> memory);

}  // namespace vccl::records
