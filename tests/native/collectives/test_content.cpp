// What ranks have in a buffer that must be the same on all of them: the hash, and the search for a
// difference.
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "csrc_pg/collectives/content.hpp"
#include "tests/native/check.hpp"
#include "tests/native/collectives/world.hpp"

using namespace vccl;

namespace {

template <class Number>
std::uint64_t hash_of(Dtype dtype, const std::vector<Number>& numbers) {
  return content_of(dtype, numbers.data(), numbers.size() * sizeof(Number) / size_of(dtype));
}

// Returns what `size` ranks find whose buffers are equal but for one byte of one rank.
std::optional<ContentDifference> found_by_ranks(const World& world, Dtype dtype, std::size_t count,
                                                std::optional<std::size_t> place, int culprit) {
  MemoryStore store;
  std::vector<std::optional<ContentDifference>> found(static_cast<std::size_t>(world.size));
  run_threads(world.size, [&](int rank) {
    as_member(store, world, rank, {}, [&](Communicator& communicator) {
      std::vector<std::byte> bytes(count * size_of(dtype));
      if (place && rank == culprit) bytes[*place * size_of(dtype)] = std::byte{3};
      found[std::size_t(rank)] =
          find_difference(communicator, dtype, bytes.data(), count, Deadline::in(kLimit));
    });
  });
  for (const auto& other : found) {
    CHECK(other.has_value() == found[0].has_value());
    if (!other) continue;
    CHECK(other->element == found[0]->element);
    CHECK(other->values == found[0]->values && other->contents == found[0]->contents);
  }
  return found[0];
}

}  // namespace

TEST(equal_elements_have_equal_hashes) {
  for (const std::size_t count : {0, 1, 511, 512, 513, 5000}) {
    const std::vector<float> numbers(count, 1.5F);
    CHECK(hash_of(Dtype::float32, numbers) == hash_of(Dtype::float32, std::vector<float>(numbers)));
  }
}

TEST(every_element_its_place_and_the_number_count) {
  for (const Dtype dtype : kDtypes) {
    const std::size_t size = size_of(dtype), count = 700;
    std::vector<std::uint8_t> bytes(count * size);
    std::set<std::uint64_t> hashes{hash_of(dtype, bytes)};
    // The other bytes of an element are 0, so it is no NaN.
    for (std::size_t i = 0; i < count; ++i) {
      bytes[i * size] = 1;
      hashes.insert(hash_of(dtype, bytes));
      bytes[i * size] = 0;
    }
    bytes.resize((count - 1) * size);
    hashes.insert(hash_of(dtype, bytes));
    CHECK(hashes.size() == count + 2);
  }
}

TEST(all_nans_are_equal) {
  const float quiet = std::numeric_limits<float>::quiet_NaN();
  const std::uint32_t other = 0xffc0'1234;
  float negative;
  std::memcpy(&negative, &other, sizeof other);
  CHECK(hash_of(Dtype::float32, std::vector<float>{1, quiet}) ==
        hash_of(Dtype::float32, std::vector<float>{1, negative}));
  CHECK(hash_of(Dtype::float32, std::vector<float>{1, quiet}) !=
        hash_of(Dtype::float32, std::vector<float>{1, std::numeric_limits<float>::infinity()}));
  CHECK(hash_of(Dtype::bfloat16, std::vector<std::uint16_t>{0x7fc0}) ==
        hash_of(Dtype::bfloat16, std::vector<std::uint16_t>{0xff81}));
  CHECK(hash_of(Dtype::bfloat16, std::vector<std::uint16_t>{0x7fc0}) !=
        hash_of(Dtype::bfloat16, std::vector<std::uint16_t>{0x7f80}));
  // The same bits are different integers.
  CHECK(hash_of(Dtype::int16, std::vector<std::uint16_t>{0x7fc0}) !=
        hash_of(Dtype::int16, std::vector<std::uint16_t>{0xff81}));
}

TEST(ranks_find_the_first_difference) {
  for (const World& world : {World{.size = 3}, World{.size = 4, .hosts = 2}}) {
    CHECK(!found_by_ranks(world, Dtype::float32, 1000, std::nullopt, 0));
    for (const std::size_t place : {0, 1, 500, 998, 999}) {
      const auto found = found_by_ranks(world, Dtype::int32, 1000, place, 1);
      CHECK(found && found->element == place);
      CHECK(found->values[0] == "0" && found->values[1] == "3" && found->values[2] == "0");
      CHECK(found->contents[0] == found->contents[2] && found->contents[0] != found->contents[1]);
    }
    const auto single = found_by_ranks(world, Dtype::int64, 1, 0, 0);
    CHECK(single && single->element == 0 && single->values[0] == "3");
  }
}

TEST(elements_as_text) {
  const float third = 1.0F / 3;
  const double complex[] = {1, -2.5};
  const std::uint16_t half = 0x3c00, brain = 0x3f80;
  const std::int8_t minus = -3;
  const std::uint8_t opaque = 0x7f, eighth = 0x38;
  CHECK(element_text(Dtype::float32, &third) == "0.333333343");
  CHECK(element_text(Dtype::complex128, complex) == "(1, -2.5)");
  CHECK(element_text(Dtype::float16, &half) == "1");
  CHECK(element_text(Dtype::bfloat16, &brain) == "1");
  CHECK(element_text(Dtype::float8_e4m3fn, &eighth) == "1");
  CHECK(element_text(Dtype::int8, &minus) == "-3");
  CHECK(element_text(Dtype::float8_e8m0fnu, &opaque) == "0x7f");
}

TEST(a_difference_as_text) {
  const RankNames names;
  CHECK(describe({17, {}, {"4", "5", "4"}}, names) == "element 17 is 4 on ranks 0, 2 and 5 on rank 1");
  CHECK(describe({0, {}, {"1", "2", "3", "4", "5"}}, names) ==
        "element 0 is 1 on rank 0, 2 on rank 1, 3 on rank 2, 4 on rank 3, and something else on other ranks");
  CHECK(describe({2, {}, {"4", "4"}}, names) ==
        "element 2 is 4 on ranks 0, 1 by now, and was not before, so something still writes to it");
}

TEST_MAIN
