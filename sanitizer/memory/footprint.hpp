// The bytes that an access touches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace sanitizer {

/// Describes the bytes of a strided tensor. Two footprints that interleave without a common byte do not
/// overlap.
class Footprint {
 public:
  Footprint() = default;
  /// Describes `bytes` bytes from `begin` on.
  Footprint(const void* begin, std::size_t bytes);
  /// Describes a tensor: `sizes` and `strides` count elements of `item` bytes. No stride may be negative.
  Footprint(const void* begin, std::size_t item, std::span<const std::int64_t> sizes,
            std::span<const std::int64_t> strides);

  bool empty() const { return run_ == 0; }
  std::uintptr_t begin() const { return begin_; }
  /// Returns the address behind the last byte.
  std::uintptr_t end() const { return end_; }

  /// Returns whether both have a byte in common. Exact for tensors; for shapes that would need more than
  /// kMostSteps steps, which take about a millisecond, the answer is no.
  bool overlaps(const Footprint& other) const;
  static constexpr int kMostSteps = 1 << 16;
  /// Returns true only if this has every byte of `other`. May return false although it has.
  bool covers(const Footprint& other) const;
  /// Returns whether the bytes follow each other without a gap.
  bool is_contiguous() const { return dimensions_.empty(); }

  /// Returns the same bytes at addresses that are `distance` higher.
  Footprint shifted(std::int64_t distance) const;
  /// Returns numbers that another process can make the footprint from.
  std::vector<std::int64_t> numbers() const;
  /// Returns nothing for numbers that numbers() does not return.
  static std::optional<Footprint> from_numbers(std::span<const std::int64_t> numbers);

 private:
  struct Dimension {
    std::int64_t count, stride;  // stride in bytes
    bool operator==(const Dimension&) const = default;
  };
  /// A part of the comparison: the inner dimensions of a footprint.
  struct Part;
  static bool meet(Part a, Part b, std::int64_t distance, int& steps);

  std::uintptr_t begin_ = 0, end_ = 0;
  std::size_t run_ = 0;                // the bytes of a piece without a gap
  std::vector<Dimension> dimensions_;  // in which the pieces repeat, the largest stride first
};

}  // namespace sanitizer
