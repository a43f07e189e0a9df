// Which allocation an address belongs to, for memory that is used through a pointer of the program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "sanitizer/memory/access.hpp"

namespace sanitizer {

/// A live allocation. The same memory has another number in each of its lives.
struct Owner {
  const void* block = nullptr;
  std::uint64_t life = 0;
  Site allocated = 0;
};

/// Memory that was freed.
struct Gone {
  Site allocated = 0;
  Site freed = 0;  // 0 if the place is not known
};

/// The allocations by address. Not thread-safe.
class Addresses {
 public:
  static constexpr std::size_t kMost = 4096;  // of what is gone that is remembered

  void allocated(const void* block, std::size_t bytes, Site site);
  /// Returns whether somebody has asked for the owner of this memory. Then freed_at() can name the place.
  bool freed(const void* block);
  void freed_at(const void* block, Site site);
  /// Forgets freed memory that nobody has asked for.
  void forget_gone() { gone_.clear(); }

  /// Returns the live allocation that has this byte. Its end is remembered.
  std::optional<Owner> owner_of(const void* byte);
  /// Returns the end of an owner, or nothing if it lives.
  std::optional<Gone> end_of(const Owner& owner) const;
  /// Returns what is known of freed memory that has this byte, unless it was given out again.
  std::optional<Gone> gone_at(const void* byte) const;

 private:
  struct Range {
    std::size_t bytes = 0;
    std::uint64_t life = 0;
    Site allocated = 0, freed = 0;
    bool asked_for = false;
  };
  using Ranges = std::map<std::uintptr_t, Range>;  // by the first byte

  static Ranges::const_iterator find(const Ranges& ranges, const void* byte);

  std::uint64_t lives_ = 0;
  Ranges live_, gone_;
  std::map<std::uint64_t, Site> ended_;  // by the life: where those were freed that somebody had asked for
};

}  // namespace sanitizer
