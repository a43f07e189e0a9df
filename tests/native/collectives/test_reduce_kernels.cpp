// The reduction loops against a naive reference, and the 16-bit floats against arithmetic in double.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "csrc_pg/collectives/narrow_floats.hpp"
#include "csrc_pg/collectives/reduce_kernels.hpp"
#include "tests/native/check.hpp"

using namespace vccl;

namespace {

constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::avg, ReduceOp::product, ReduceOp::min, ReduceOp::max};

// ---- 16-bit floats by the definition of their format
// -------------------------------------------------------------

// A float of `exponent_bits` and `mantissa_bits`: what the bits mean.
double decode(std::uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1;
  const int exponent = (bits >> mantissa_bits) & top, mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == top) return mantissa ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

// The nearest such float, ties to even; any NaN becomes the quiet one.
std::uint16_t encode(double value, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const std::uint16_t infinity = std::uint16_t(((1 << exponent_bits) - 1) << mantissa_bits);
  const double magnitude = std::fabs(value);
  if (std::isnan(value)) return std::uint16_t(sign | infinity | (1 << (mantissa_bits - 1)));
  if (std::isinf(value)) return sign | infinity;
  if (magnitude == 0) return sign;
  const int exponent = std::max(std::ilogb(magnitude), 1 - bias);
  // In units of the last place; nearbyint rounds ties to even, and may carry into the next exponent.
  const auto units =
      static_cast<std::uint64_t>(std::nearbyint(std::ldexp(magnitude, mantissa_bits - exponent)));
  const std::uint64_t bits = units + (std::uint64_t(exponent + bias - 1) << mantissa_bits);
  return std::uint16_t(sign | (bits >= infinity ? infinity : bits));
}

bool same_float(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return bits_of(a) == bits_of(b);
}

bool is_nan16(std::uint16_t bits, int mantissa_bits) {
  return std::isnan(decode(bits, 15 - mantissa_bits, mantissa_bits));
}

void check_encoding(float value) {
  const std::uint16_t half = float_to_half(value), wanted_half = encode(value, 5, 10);
  const std::uint16_t brain = float_to_bfloat16(value), wanted_brain = encode(value, 8, 7);
  if (std::isnan(value)) {
    CHECK(is_nan16(half, 10) && is_nan16(brain, 7));
    CHECK((half & 0x0200) && (brain & 0x0040));  // quiet
    return;
  }
  if (half != wanted_half || brain != wanted_brain)
    throw check::Failure("encoding of float bits " + std::to_string(bits_of(value)));
}

// ---- what one element of a reduction should be
// -------------------------------------------------------------------

// Floats: one operation in double and one rounding is the correctly rounded result in float.
template <class T>
T naive(ReduceOp op, T a, T b, int ranks, bool finish) {
  if constexpr (std::is_integral_v<T>) {
    __int128 x = a, y = b;
    switch (op) {
      case ReduceOp::sum:
        return T(x + y);
      case ReduceOp::avg:
        return finish ? T(__int128(T(x + y)) / ranks) : T(x + y);
      case ReduceOp::product:
        return T(static_cast<unsigned __int128>(x) * static_cast<unsigned __int128>(y));
      case ReduceOp::min:
        return x < y ? a : b;
      case ReduceOp::max:
        return x > y ? a : b;
    }
  } else {
    switch (op) {
      case ReduceOp::sum:
        return a + b;
      case ReduceOp::avg:
        return finish ? (a + b) / T(ranks) : a + b;
      case ReduceOp::product:
        return a * b;
      case ReduceOp::min:
        return std::isnan(a) || std::isnan(b) ? T(NAN) : a < b ? a : b;
      case ReduceOp::max:
        return std::isnan(a) || std::isnan(b) ? T(NAN) : a > b ? a : b;
    }
  }
  return T();
}

template <class T>
bool same_value(T a, T b) {
  if constexpr (std::is_floating_point_v<T>)
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return std::memcmp(&a, &b, sizeof a) == 0;
}

template <class T>
std::vector<T> sample(std::mt19937_64& random, std::size_t count) {
  std::vector<T> values(count);
  for (auto& value : values) {
    const std::uint64_t bits = random();
    std::memcpy(&value, &bits,
                sizeof value);  // every pattern: subnormals, infinities and NaN among the floats
    if constexpr (std::is_floating_point_v<T>) {
      static const T kSpecial[] = {T(0),
                                   -T(0),
                                   T(1),
                                   T(-1),
                                   std::numeric_limits<T>::infinity(),
                                   -std::numeric_limits<T>::infinity(),
                                   std::numeric_limits<T>::quiet_NaN(),
                                   std::numeric_limits<T>::max(),
                                   std::numeric_limits<T>::lowest(),
                                   std::numeric_limits<T>::min(),
                                   std::numeric_limits<T>::denorm_min()};
      if (random() % 4 == 0) value = kSpecial[random() % std::size(kSpecial)];
      if (random() % 3 == 0) value = T(std::int64_t(random()) >> 20) / T(1 << 20);
    } else {
      if (random() % 4 == 0)
        value = random() % 2 ? std::numeric_limits<T>::max() : std::numeric_limits<T>::min();
      if (random() % 3 == 0) value = T(random() % 16);
    }
  }
  return values;
}

// Runs `kernel` from and to unaligned addresses, in place on `b` or not.
template <class Out, class A, class B>
std::vector<Out> apply(Kernel kernel, const std::vector<A>& a, const std::vector<B>& b, int ranks,
                       std::size_t shift, bool in_place) {
  std::vector<char> x(a.size() * sizeof(A) + 80), y(b.size() * sizeof(B) + 80),
      out(a.size() * sizeof(Out) + 80, 0x55);
  std::memcpy(x.data() + shift, a.data(), a.size() * sizeof(A));
  std::memcpy(y.data() + shift * 3, b.data(), b.size() * sizeof(B));
  char* to = in_place ? y.data() + shift * 3 : out.data() + shift * 5;
  kernel(to, x.data() + shift, y.data() + shift * 3, a.size(), ranks);
  if (!in_place) {
    for (std::size_t i = 0; i < shift * 5; ++i) CHECK(out[i] == 0x55);
    for (std::size_t i = shift * 5 + a.size() * sizeof(Out); i < out.size(); ++i) CHECK(out[i] == 0x55);
  }
  std::vector<Out> result(a.size());
  std::memcpy(result.data(), to, a.size() * sizeof(Out));
  return result;
}

using Find = const Reduction* (*)(Dtype, ReduceOp) noexcept;
constexpr Find kFinds[] = {find_reduction, find_portable_reduction};
constexpr std::size_t kCounts[] = {0, 1, 2, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 1000, 4099};

template <class T>
void check_number(Dtype dtype) {
  std::mt19937_64 random(17);
  CHECK_EQ(size_of(dtype), sizeof(T));
  for (const auto find : kFinds)
    for (const auto op : kOps)
      for (const auto count : kCounts)
        for (const int ranks : {2, 3, 200}) {
          const auto* reduction = find(dtype, op);
          CHECK(reduction != nullptr);
          CHECK_EQ(reduction->partial_size, sizeof(T));
          const auto a = sample<T>(random, count), b = sample<T>(random, count);
          const std::size_t shift = random() % 9;
          const auto step = apply<T>(reduction->middle, a, b, ranks, shift, random() % 2);
          const auto last = apply<T>(reduction->last, a, b, ranks, shift, random() % 2);
          CHECK(reduction->first == reduction->middle && reduction->only == reduction->last);
          for (std::size_t i = 0; i < count; ++i) {
            const T wanted_step = naive<T>(op, a[i], b[i], ranks, false),
                    wanted = naive<T>(op, a[i], b[i], ranks, true);
            if (!same_value(step[i], wanted_step) || !same_value(last[i], wanted)) {
              std::ostringstream text;
              text << to_string(dtype) << " " << to_string(op) << " of " << +a[i] << " and " << +b[i] << ": "
                   << +step[i] << " for " << +wanted_step << ", " << +last[i] << " for " << +wanted;
              throw check::Failure(text.str());
            }
          }
        }
}

void check_narrow(Dtype dtype, int mantissa_bits) {
  const int exponent_bits = 15 - mantissa_bits;
  std::mt19937_64 random(23);
  const auto wide = [&](std::uint16_t bits) { return float(decode(bits, exponent_bits, mantissa_bits)); };
  const auto same16 = [&](std::uint16_t a, float b) {
    const std::uint16_t wanted = encode(b, exponent_bits, mantissa_bits);
    return a == wanted || (is_nan16(a, mantissa_bits) && is_nan16(wanted, mantissa_bits));
  };
  for (const auto find : kFinds)
    for (const auto op : kOps)
      for (const auto count : kCounts)
        for (const int ranks : {2, 3, 7}) {
          const auto* reduction = find(dtype, op);
          CHECK(reduction != nullptr);
          auto a = sample<std::uint16_t>(random, count), b = sample<std::uint16_t>(random, count);
          const auto partial = sample<float>(random, count);
          const std::size_t shift = random() % 9;
          const auto only = apply<std::uint16_t>(reduction->only, a, b, ranks, shift, random() % 2);
          for (std::size_t i = 0; i < count; ++i)
            CHECK(same16(only[i], naive<float>(op, wide(a[i]), wide(b[i]), ranks, true)));
          if (op == ReduceOp::min || op == ReduceOp::max) {
            CHECK_EQ(reduction->partial_size, sizeof(std::uint16_t));
            CHECK(reduction->first == reduction->only && reduction->middle == reduction->only);
            CHECK(reduction->last == reduction->only);
            continue;
          }
          CHECK_EQ(reduction->partial_size, sizeof(float));
          const auto first = apply<float>(reduction->first, a, b, ranks, shift, false);
          const auto middle = apply<float>(reduction->middle, partial, b, ranks, shift, false);
          const auto last = apply<std::uint16_t>(reduction->last, partial, b, ranks, shift, random() % 2);
          for (std::size_t i = 0; i < count; ++i) {
            CHECK(same_float(first[i], naive<float>(op, wide(a[i]), wide(b[i]), ranks, false)));
            CHECK(same_float(middle[i], naive<float>(op, partial[i], wide(b[i]), ranks, false)));
            CHECK(same16(last[i], naive<float>(op, partial[i], wide(b[i]), ranks, true)));
          }
        }
}

}  // namespace

TEST(every_16_bit_pattern_widens_exactly) {
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    CHECK(same_float(half_to_float(bits), float(decode(bits, 5, 10))));
    CHECK(same_float(bfloat16_to_float(bits), float(decode(bits, 8, 7))));
    if (!is_nan16(bits, 10)) CHECK_EQ(float_to_half(half_to_float(bits)), bits);
    if (!is_nan16(bits, 7)) CHECK_EQ(float_to_bfloat16(bfloat16_to_float(bits)), bits);
  }
}

TEST(floats_narrow_to_the_nearest_even) {
  // Around every representable value and every midpoint between two, and anywhere else.
  for (std::uint32_t i = 0; i < 65536; ++i)
    for (const int mantissa_bits : {10, 7}) {
      const auto low = static_cast<std::uint16_t>(i), high = static_cast<std::uint16_t>(i + 1);
      const double a = decode(low, 15 - mantissa_bits, mantissa_bits),
                   b = decode(high, 15 - mantissa_bits, mantissa_bits);
      if (!std::isfinite(a)) continue;
      const float middle =
          std::isfinite(b) ? float((a + b) / 2) : float(a + std::ldexp(a, -mantissa_bits - 2));
      for (const float value : {float(a), middle}) {
        check_encoding(value);
        check_encoding(std::nextafter(value, INFINITY));
        check_encoding(std::nextafter(value, -INFINITY));
      }
    }
  for (const float edge :
       {65504.f, 65519.996f, 65520.f, 65536.f, 3.4e38f, 0x1p-14f, 0x1p-24f, 0x1p-25f, 0x1.8p-25f})
    check_encoding(edge), check_encoding(-edge);
  std::mt19937_64 random(5);
  for (int i = 0; i < 1'000'000; ++i) check_encoding(float_of(std::uint32_t(random())));
}

TEST(machine_and_portable_loops_agree_on_every_16_bit_pattern) {
  std::vector<std::uint16_t> all(65536), zero(65536, 0x8000), reversed(65536);
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] = std::uint16_t(i), reversed[i] = std::uint16_t(i * 40503u + 11);
  for (const auto dtype : {Dtype::float16, Dtype::bfloat16})
    for (const auto op : kOps)
      for (const auto& other : {zero, reversed}) {
        const auto *machine = find_reduction(dtype, op), *portable = find_portable_reduction(dtype, op);
        // Which of two NaNs an addition passes on is the compiler's choice: only that it is one must agree.
        const int mantissa_bits = dtype == Dtype::float16 ? 10 : 7;
        const auto c = apply<std::uint16_t>(machine->only, all, other, 3, 0, false);
        const auto d = apply<std::uint16_t>(portable->only, all, other, 3, 0, false);
        for (std::size_t i = 0; i < all.size(); ++i)
          CHECK(c[i] == d[i] || (is_nan16(c[i], mantissa_bits) && is_nan16(d[i], mantissa_bits)));
        if (machine->partial_size != sizeof(float)) continue;
        const auto a = apply<float>(machine->first, all, other, 3, 0, false);
        const auto b = apply<float>(portable->first, all, other, 3, 0, false);
        for (std::size_t i = 0; i < all.size(); ++i) CHECK(same_float(a[i], b[i]));
      }
}

TEST(numbers) {
  check_number<std::int8_t>(Dtype::int8);
  check_number<std::int16_t>(Dtype::int16);
  check_number<std::int32_t>(Dtype::int32);
  check_number<std::int64_t>(Dtype::int64);
  check_number<std::uint8_t>(Dtype::uint8);
  check_number<std::uint16_t>(Dtype::uint16);
  check_number<std::uint32_t>(Dtype::uint32);
  check_number<std::uint64_t>(Dtype::uint64);
  check_number<float>(Dtype::float32);
  check_number<double>(Dtype::float64);
}

TEST(float16) {
  check_narrow(Dtype::float16, 10);
}
TEST(bfloat16) {
  check_narrow(Dtype::bfloat16, 7);
}

TEST(booleans_are_0_or_1) {
  std::mt19937_64 random(3);
  for (const auto find : kFinds) {
    CHECK(find(Dtype::boolean, ReduceOp::avg) == nullptr);
    for (const auto op : {ReduceOp::sum, ReduceOp::product, ReduceOp::min, ReduceOp::max})
      for (const auto count : kCounts) {
        auto a = sample<std::uint8_t>(random, count), b = sample<std::uint8_t>(random, count);
        for (std::size_t i = 0; i < count; ++i)
          if (random() % 2) a[i] = 0, b[i] = std::uint8_t(b[i] * (random() % 2));
        const auto* reduction = find(Dtype::boolean, op);
        const auto result = apply<std::uint8_t>(reduction->only, a, b, 2, random() % 9, random() % 2);
        const bool is_or = op == ReduceOp::sum || op == ReduceOp::max;
        for (std::size_t i = 0; i < count; ++i)
          CHECK_EQ(int(result[i]), int(is_or ? a[i] || b[i] : a[i] && b[i]));
      }
  }
}

TEST(names) {
  CHECK_EQ(describe({std::uint8_t(Collective::all_reduce), std::uint8_t(Dtype::float32),
                     std::uint8_t(ReduceOp::sum), -1, 1024}),
           "all_reduce(float32, 1024 elements, SUM)");
  CHECK_EQ(describe({std::uint8_t(Collective::broadcast), std::uint8_t(Dtype::boolean), 0, 3, 1}),
           "broadcast(bool, 1 element, root 3)");
  CHECK_EQ(describe({std::uint8_t(Collective::all_gather), std::uint8_t(Dtype::bfloat16), 0, -1, 0}),
           "all_gather(bfloat16, 0 elements)");
  CHECK_EQ(describe({std::uint8_t(Collective::barrier)}), "barrier()");
  CHECK_EQ(describe({250, 251, 252, 0, 2}), "unknown collective(unknown dtype, 2 elements)");
}

TEST_MAIN
