// Ranges of the host arena: merging, cutting, best fit, against a byte map.
#include <cstdint>
#include <random>
#include <vector>

#include "csrc_device/runtime/memory/host_ranges.hpp"
#include "tests/native/check.hpp"

using vdev::HostRange;
using vdev::HostRanges;

namespace {

std::vector<HostRange> listed(const HostRanges& ranges) {
  std::vector<HostRange> result;
  for (const auto& [at, size] : ranges.all()) result.push_back({at, size});
  return result;
}

/// What HostRanges does, a byte at a time.
struct Bytes {
  explicit Bytes(std::size_t size) : in(size, false) {}
  std::vector<bool> in;

  std::vector<HostRange> ranges(bool value, std::size_t from, std::size_t to) const {
    std::vector<HostRange> result;
    for (std::size_t i = from; i < to; ++i) {
      if (in[i] != value) continue;
      if (!result.empty() && result.back().end() == i) {
        ++result.back().size;
      } else {
        result.push_back({i, 1});
      }
    }
    return result;
  }
  void set(HostRange range, bool value) {
    for (std::size_t i = range.at; i < range.end(); ++i) in[i] = value;
  }
};

}  // namespace

TEST(neighbours_merge) {
  HostRanges ranges;
  ranges.add({10, 5});
  ranges.add({20, 5});
  ranges.add({15, 5});
  CHECK(listed(ranges) == (std::vector<HostRange>{{10, 15}}));
  CHECK_EQ(ranges.bytes(), std::size_t{15});
  ranges.add({30, 0});
  CHECK_EQ(ranges.all().size(), std::size_t{1});
}

TEST(the_smallest_that_fits_and_of_those_the_lowest) {
  HostRanges ranges;
  ranges.add({0, 100});
  ranges.add({200, 10});
  ranges.add({300, 10});
  CHECK(ranges.find(5) == (HostRange{200, 10}));
  CHECK(ranges.find(11) == (HostRange{0, 100}));
  CHECK(!ranges.find(101));
}

TEST(random_changes_are_those_of_a_byte_map) {
  constexpr std::size_t kSize = 200;
  std::mt19937 random(7);
  const auto below = [&](std::size_t n) { return random() % n; };
  HostRanges ranges;
  Bytes bytes(kSize);
  for (int step = 0; step < 20'000; ++step) {
    const std::size_t at = below(kSize), size = below(kSize - at + 1);
    const std::size_t what = below(8);
    if (what < 4) {
      for (const auto& hole : bytes.ranges(false, at, at + size)) ranges.add(hole);
      bytes.set({at, size}, true);
    } else if (what < 7) {
      CHECK(ranges.remove({at, size}) == bytes.ranges(false, at, at + size));
      bytes.set({at, size}, false);
    } else {
      std::size_t wanted = size / 4, got = 0;
      for (const auto& part : ranges.remove_highest(wanted)) {
        got += part.size;
        CHECK(bytes.ranges(true, part.at, kSize).front().at == part.at);
        bytes.set(part, false);
        CHECK(bytes.ranges(true, part.end(), kSize).empty());
      }
      CHECK(got == wanted || listed(ranges).empty());
    }
    CHECK(listed(ranges) == bytes.ranges(true, 0, kSize));
    std::size_t total = 0;
    for (const auto& range : listed(ranges)) total += range.size;
    CHECK_EQ(ranges.bytes(), total);
  }
}

TEST_MAIN
