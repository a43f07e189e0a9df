// MessagePack: round trips, the bytes that other implementations write, and everything malformed.
#include "transport/msgpack.hpp"

#include <cstdint>
#include <cstdlib>
#include <random>

#include "tests/native/check.hpp"
#include "transport/error.hpp"

namespace vccl::msgpack {
namespace {

std::string bytes(std::initializer_list<int> values) {
  std::string result;
  for (int value : values) result.push_back(static_cast<char>(value));
  return result;
}

void check_round_trip(const Value& value) {
  CHECK(decode(encode(value)) == value);
}

TEST(round_trips) {
  check_round_trip(Value());
  for (bool value : {false, true}) check_round_trip(value);
  for (int shift = 0; shift < 64; ++shift) {
    for (int delta = -1; delta <= 1; ++delta) {
      const std::uint64_t bits = (std::uint64_t{1} << shift) + static_cast<std::uint64_t>(delta);
      check_round_trip(bits);
      check_round_trip(static_cast<std::int64_t>(bits));
      check_round_trip(static_cast<std::int64_t>(0 - bits));
      CHECK(decode(encode(Value(bits))).as_uint() == bits);
    }
  }
  for (std::size_t size : {0, 1, 31, 32, 255, 256, 65'535, 65'536, 100'000}) {
    check_round_trip(std::string(size, 'x'));
    check_round_trip(Binary{std::string(size, '\xff')});
    check_round_trip(Array(size, Value(7)));
  }
  Map map;
  for (int i = 0; i < 20; ++i) {
    map["key " + std::to_string(i)] = Array{i, "text", Map{{"inner", Binary{"bytes"}}}};
    check_round_trip(map);
  }
}

// From the specification's table of formats.
TEST(known_bytes) {
  CHECK(encode(Value(127)) == bytes({0x7f}));
  CHECK(encode(Value(128)) == bytes({0xcc, 0x80}));
  CHECK(encode(Value(65'536)) == bytes({0xce, 0, 1, 0, 0}));
  CHECK(encode(Value(-32)) == bytes({0xe0}));
  CHECK(encode(Value(-33)) == bytes({0xd0, 0xdf}));
  CHECK(encode(Value(-129)) == bytes({0xd1, 0xff, 0x7f}));
  CHECK(encode(Map{{"a", true}, {"b", Value()}}) == bytes({0x82, 0xa1, 'a', 0xc3, 0xa1, 'b', 0xc0}));
  CHECK(encode(Binary{"x"}) == bytes({0xc4, 1, 'x'}));
  CHECK(encode(Array{}) == bytes({0x90}));
  // Longer forms than needed are valid as well.
  CHECK(decode(bytes({0xd3, 0, 0, 0, 0, 0, 0, 0, 5})) == Value(5));
  CHECK(decode(bytes({0xda, 0, 1, 'x'})) == Value("x"));
  CHECK(decode(bytes({0xdd, 0, 0, 0, 1, 0xc2})) == Value(Array{false}));
}

TEST(malformed_is_refused) {
  for (const std::string& bad :
       {bytes({}), bytes({0xc1}), bytes({0xca, 0, 0, 0, 0}), bytes({0xd4, 0, 0}), bytes({0xa3, 'a', 'b'}),
        bytes({0xcd, 1}), bytes({0xdd, 0xff, 0xff, 0xff, 0xff}), bytes({0xdf, 0xff, 0xff, 0xff, 0xff}),
        bytes({0xdb, 0xff, 0xff, 0xff, 0xff, 'x'}), bytes({0xc6, 0x7f, 0xff, 0xff, 0xff}), bytes({0x92, 1}),
        bytes({0x81, 1, 2}), bytes({0x82, 0xa1, 'a', 1, 0xa1, 'a', 2}), bytes({1, 2})}) {
    CHECK_THROWS(decode(bad), Error);
  }
  CHECK_THROWS(decode(std::string(100'000, '\x91')), Error);  // deep, not a stack overflow
}

TEST(readers_check_types_and_ranges) {
  const Value message = Map{{"n", 300}, {"s", "text"}};
  CHECK(message.at("n").as_int(0, 300) == 300);
  CHECK_THROWS(message.at("n").as_int(0, 299), Error);
  CHECK_THROWS(message.at("missing"), Error);
  CHECK_THROWS(message.at("s").as_int(0, 1), Error);
  CHECK_THROWS(message.at("n").as_string(), Error);
  CHECK_THROWS(message.at("s").as_binary(), Error);
  CHECK_THROWS(message.at("s").as_bool(), Error);
  CHECK_THROWS(message.as_array(), Error);
  CHECK_THROWS(Value(3).as_map(), Error);
  CHECK_THROWS(Value(-1).as_uint(), Error);
}

// Whatever comes in: a value or an error, and no access beyond the input (the address sanitizer looks).
TEST(random_input) {
  std::mt19937_64 random(3);
  const std::string valid = encode(Map{{"v", 1}, {"t", "block"}, {"list", Array{1, "two", Binary{"three"}}}});
  for (int i = 0; i < 20'000; ++i) {
    std::string input = valid;
    for (int change = 0; change < 3; ++change) input[random() % input.size()] = static_cast<char>(random());
    input.resize(random() % (input.size() + 1));
    try {
      decode(input);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::protocol);
    }
  }
}

/// The value that test_msgpack_bytes.py builds in Python.
Value sample() {
  Array integers;
  for (int shift = 0; shift < 63; ++shift) {
    integers.emplace_back(std::int64_t{1} << shift);
    integers.emplace_back(-(std::int64_t{1} << shift));
  }
  integers.emplace_back(UINT64_MAX);
  integers.emplace_back(INT64_MIN);
  Map keys;
  for (int i = 10; i < 30; ++i) keys["k" + std::to_string(i)] = i;
  return Map{{"array", Array(20, Value(true))},
             {"bin", Binary{std::string(300, '\x01')}},
             {"integers", integers},
             {"keys", keys},
             {"long", std::string(70'000, 'y')},
             {"nil", Value()},
             {"text", "caf\xc3\xa9"}};
}

}  // namespace
}  // namespace vccl::msgpack

// "--sample" writes the sample's bytes, for the comparison with Python's msgpack.
int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "--sample") {
    const std::string out = vccl::msgpack::encode(vccl::msgpack::sample());
    return std::fwrite(out.data(), 1, out.size(), stdout) == out.size() ? 0 : 1;
  }
  return ::check::run(argc, argv);
}
