// The search for elements that are NaN or infinite, in every dtype and at every place.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "csrc_pg/collectives/finite.hpp"
#include "tests/native/check.hpp"
#include "tests/native/collectives/world.hpp"

using namespace vccl;

namespace {

template <class Word>
void check_bits(Dtype dtype, Word finite, std::vector<Word> others) {
  for (const std::size_t count : {1, 255, 256, 257, 1000}) {
    std::vector<Word> elements(count, finite);
    CHECK(!find_nonfinite(dtype, elements.data(), count));
    for (const Word other : others) {
      for (const std::size_t place : {std::size_t{0}, count / 2, count - 1}) {
        elements[place] = other;
        const auto found = find_nonfinite(dtype, elements.data(), count);
        CHECK(found && *found == place);
        elements[place] = finite;
      }
    }
  }
}

}  // namespace

TEST(every_float) {
  check_bits<std::uint16_t>(Dtype::float16, 0xfbff, {0x7c00, 0xfc00, 0x7e01});
  check_bits<std::uint16_t>(Dtype::bfloat16, 0xff7f, {0x7f80, 0xff80, 0x7fc1});
  check_bits<float>(Dtype::float32, std::numeric_limits<float>::lowest(),
                    {INFINITY, -INFINITY, std::numeric_limits<float>::quiet_NaN()});
  check_bits<double>(Dtype::float64, std::numeric_limits<double>::max(),
                     {INFINITY, -INFINITY, std::numeric_limits<double>::quiet_NaN()});
  check_bits<std::uint8_t>(Dtype::float8_e4m3fn, 0x7e, {0x7f, 0xff});
  check_bits<std::uint8_t>(Dtype::float8_e5m2, 0xfb, {0x7c, 0xfc, 0x7d});
  check_bits<std::uint8_t>(Dtype::float8_e4m3fnuz, 0x7f, {0x80});
  check_bits<std::uint8_t>(Dtype::float8_e5m2fnuz, 0xff, {0x80});
  check_bits<std::uint8_t>(Dtype::float8_e8m0fnu, 0xfe, {0xff});
}

TEST(a_part_of_a_complex_element) {
  std::vector<float> parts(20, 1.0F);
  CHECK(!find_nonfinite(Dtype::complex64, parts.data(), 10));
  parts[7] = INFINITY;
  CHECK(find_nonfinite(Dtype::complex64, parts.data(), 10) == std::size_t{3});
  std::vector<double> more(20, 1.0);
  more[8] = NAN;
  CHECK(find_nonfinite(Dtype::complex128, more.data(), 10) == std::size_t{4});
}

TEST(integers_are_finite_and_any_alignment_will_do) {
  const std::vector<std::uint32_t> ones(300, 0xffffffff);
  CHECK(!find_nonfinite(Dtype::int32, ones.data(), 300));
  CHECK(!find_nonfinite(Dtype::boolean, ones.data(), 300));
  std::vector<std::byte> bytes(4 * 300 + 1);
  const float nan = NAN;
  std::memcpy(bytes.data() + 1 + 4 * 299, &nan, 4);
  CHECK(find_nonfinite(Dtype::float32, bytes.data() + 1, 300) == std::size_t{299});
  CHECK(!find_nonfinite(Dtype::float32, bytes.data() + 1, 0));
}

TEST(every_rank_learns_why_ranks_refuse_a_call) {
  for (const int size : {1, 3}) {
    MemoryStore store;
    std::vector<std::string> texts(static_cast<std::size_t>(size));
    run_threads(size, [&](int rank) {
      as_member(store, World{.size = size}, rank, {}, [&](Communicator& communicator) {
        float number = 0;
        Call call{.collective = Collective::all_reduce, .dtype = Dtype::float32, .count = 1};
        call.input = call.output = &number;
        if (rank != 1) call.refused = Nonfinite{std::size_t(rank), 9, std::size_t(rank), rank == 2 ? 3U : 1U};
        const Error error = error_of([&] { run(communicator, call, Deadline::in(kLimit)); });
        CHECK(error.code() == ErrorCode::invalid);
        CHECK(communicator.failed());
        texts[std::size_t(rank)] = error.what();
      });
    });
    for (const auto& text : texts) {
      check_contains(text, "rank 0 refuses all_reduce(float32, 1 element, SUM) (operation 1 of group");
      check_contains(text, "): element 0 of 9 of the input is NaN or infinite (VCCL_CHECK=nan)");
      if (size == 3)
        check_contains(text,
                       "; rank 2: element 2 of 9 of the input of call 3 of 3 in a batch is NaN or infinite");
      CHECK(text.find("rank 1:") == std::string::npos);
    }
  }
}

TEST_MAIN
