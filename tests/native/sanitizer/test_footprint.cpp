// Footprints, compared with sets of bytes.
#include <random>
#include <set>
#include <vector>

#include "sanitizer/memory/footprint.hpp"
#include "tests/native/check.hpp"

using sanitizer::Footprint;

namespace {

struct Shape {
  std::uintptr_t begin;
  std::size_t item;
  std::vector<std::int64_t> sizes, strides;

  Footprint footprint() const { return {reinterpret_cast<const void*>(begin), item, sizes, strides}; }
  std::set<std::uintptr_t> bytes() const {
    std::set<std::uintptr_t> all;
    add(all, 0, begin);
    return all;
  }

 private:
  void add(std::set<std::uintptr_t>& all, std::size_t dimension, std::uintptr_t at) const {
    if (dimension == sizes.size()) {
      for (std::size_t i = 0; i < item; ++i) all.insert(at + i);
      return;
    }
    for (std::int64_t i = 0; i < sizes[dimension]; ++i)
      add(all, dimension + 1,
          at + static_cast<std::uintptr_t>(i * strides[dimension]) * static_cast<std::uintptr_t>(item));
  }
};

bool overlap(const std::set<std::uintptr_t>& a, const std::set<std::uintptr_t>& b) {
  for (const auto byte : a)
    if (b.contains(byte)) return true;
  return false;
}

bool contains(const std::set<std::uintptr_t>& a, const std::set<std::uintptr_t>& b) {
  for (const auto byte : b)
    if (!a.contains(byte)) return false;
  return true;
}

Shape random_shape(std::mt19937& random) {
  const auto up_to = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  Shape shape{static_cast<std::uintptr_t>(1000 + up_to(64)), std::size_t{1} << up_to(4), {}, {}};
  for (int i = up_to(4); i > 0; --i) {
    shape.sizes.push_back(up_to(6));
    shape.strides.push_back(up_to(20));
  }
  return shape;
}

}  // namespace

TEST(random_shapes_overlap_where_their_bytes_do) {
  std::mt19937 random(7);
  int overlapping = 0, apart = 0;
  for (int i = 0; i < 100'000; ++i) {
    const Shape a = random_shape(random), b = random_shape(random);
    const auto bytes_a = a.bytes(), bytes_b = b.bytes();
    const bool expected = overlap(bytes_a, bytes_b);
    CHECK_EQ(a.footprint().overlaps(b.footprint()), expected);
    CHECK_EQ(b.footprint().overlaps(a.footprint()), expected);
    if (a.footprint().covers(b.footprint())) CHECK(contains(bytes_a, bytes_b));
    CHECK_EQ(a.footprint().empty(), bytes_a.empty());
    if (!bytes_a.empty()) {
      CHECK_EQ(a.footprint().begin(), *bytes_a.begin());
      CHECK_EQ(a.footprint().end(), *bytes_a.rbegin() + 1);
    }
    ++(expected ? overlapping : apart);
  }
  CHECK(overlapping > 10'000 && apart > 10'000);
}

TEST(columns_of_a_large_matrix_are_apart) {
  const std::vector<std::int64_t> sizes{1'000'000, 3}, strides{7, 1};
  const Footprint left(reinterpret_cast<const void*>(4096), 4, sizes, strides);
  const Footprint right(reinterpret_cast<const void*>(4096 + 12), 4, sizes, strides);
  const Footprint both(reinterpret_cast<const void*>(4096 + 8), 4, sizes, strides);
  CHECK(!left.overlaps(right));
  CHECK(left.overlaps(both) && right.overlaps(both));
}

TEST(a_contiguous_tensor_in_any_order_of_its_dimensions_has_no_gap) {
  const std::vector<std::int64_t> sizes{5, 7, 3}, strides{1, 15, 5};
  const Footprint transposed(reinterpret_cast<const void*>(4096), 4, sizes, strides);
  CHECK(transposed.is_contiguous());
  CHECK(transposed.covers(Footprint(reinterpret_cast<const void*>(4096), 5 * 7 * 3 * 4)));
}

TEST_MAIN
