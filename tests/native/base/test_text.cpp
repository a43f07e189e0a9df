// Texts are put together from strings, characters and numbers.
#include "base/text.hpp"

#include <cstdint>
#include <limits>
#include <string>

#include "tests/native/check.hpp"

namespace base {
namespace {

TEST(strings_of_every_kind_keep_their_order) {
  const std::string name = "world";
  const std::string_view part = std::string_view("one two").substr(0, 3);
  const char* const call = "mmap";
  CHECK_EQ(text("group ", name, ": ", part, ' ', call, std::string("!")), "group world: one mmap!");
  CHECK_EQ(text(), "");
  CHECK_EQ(text("", std::string(), ""), "");
}

TEST(numbers_are_written_in_decimals) {
  CHECK_EQ(text("rank ", 3, " of ", std::size_t{8}, " at ", -1), "rank 3 of 8 at -1");
  CHECK_EQ(text(std::uint8_t{65}, ' ', std::int8_t{-65}), "65 -65");
  CHECK_EQ(text(std::numeric_limits<std::int64_t>::min()), "-9223372036854775808");
  CHECK_EQ(text(std::numeric_limits<std::uint64_t>::max()), "18446744073709551615");
}

}  // namespace
}  // namespace base

TEST_MAIN
