// Compares the reduction loops with a naive reference, and the narrow floats with arithmetic in double.
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "base/denormals.hpp"
#include "csrc_pg/collectives/kernels/narrow_floats.hpp"
#include "csrc_pg/collectives/kernels/reduction.hpp"
#include "tests/native/check.hpp"
#include "tests/native/collectives/cases.hpp"

using namespace vccl;
using reference::has_meaning;
using reference::kOps;

namespace {

// ---- narrow floats by the definition of their format
// -------------------------------------------------------------

struct Format {
  int exponent_bits, mantissa_bits;
  bool has_infinity = true;  // without: all ones is NaN, and what is too large becomes the largest number

  int width() const { return 1 + exponent_bits + mantissa_bits; }
  std::uint16_t sign() const { return std::uint16_t(1 << (width() - 1)); }
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  std::uint16_t infinity() const { return std::uint16_t(((1 << exponent_bits) - 1) << mantissa_bits); }
  std::uint16_t largest() const { return std::uint16_t(has_infinity ? infinity() - 1 : sign() - 2); }
};
constexpr Format kHalf{5, 10}, kBrain{8, 7}, kE4M3{4, 3, false}, kE5M2{5, 2};

// Returns the number that the bits mean.
double decode(std::uint16_t bits, const Format& f) {
  const int top = (1 << f.exponent_bits) - 1;
  const int exponent = (bits >> f.mantissa_bits) & top, mantissa = bits & ((1 << f.mantissa_bits) - 1);
  const double sign = bits & f.sign() ? -1.0 : 1.0;
  if (!f.has_infinity && (bits & (f.sign() - 1)) == f.sign() - 1) return std::nan("");
  if (f.has_infinity && exponent == top)
    return mantissa ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - f.bias() - f.mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << f.mantissa_bits), exponent - f.bias() - f.mantissa_bits);
}

// Returns the nearest such float, ties to even. Any NaN becomes a quiet one.
std::uint16_t encode(double value, const Format& f) {
  const std::uint16_t sign = std::signbit(value) ? f.sign() : 0;
  const std::uint16_t beyond = f.has_infinity ? f.infinity() : f.largest();
  const double magnitude = std::fabs(value);
  if (std::isnan(value)) return std::uint16_t(sign | (f.sign() - 1));
  if (std::isinf(value)) return sign | beyond;
  if (magnitude == 0) return sign;
  const int exponent = std::max(std::ilogb(magnitude), 1 - f.bias());
  // The number is in units of the last place. nearbyint rounds ties to even, and may carry into the next
  // exponent.
  const auto units =
      static_cast<std::uint64_t>(std::nearbyint(std::ldexp(magnitude, f.mantissa_bits - exponent)));
  const std::uint64_t bits = units + (std::uint64_t(exponent + f.bias() - 1) << f.mantissa_bits);
  return std::uint16_t(sign | (bits > f.largest() ? beyond : bits));
}

bool same_float(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return bits_of(a) == bits_of(b);
}

bool is_nan(std::uint16_t bits, const Format& f) {
  return std::isnan(decode(bits, f));
}

bool same_bits(std::uint16_t a, std::uint16_t b, const Format& f) {
  return a == b || (is_nan(a, f) && is_nan(b, f));
}

void check_encoding(float value) {
  const std::uint16_t half = from_float<Float16>(value), brain = from_float<Bfloat16>(value);
  if (std::isnan(value)) CHECK((half & 0x0200) && (brain & 0x0040));  // quiet
  if (!same_bits(half, encode(value, kHalf), kHalf) || !same_bits(brain, encode(value, kBrain), kBrain) ||
      !same_bits(from_float<Float8E4M3>(value), encode(value, kE4M3), kE4M3) ||
      !same_bits(from_float<Float8E5M2>(value), encode(value, kE5M2), kE5M2))
    throw check::Failure("encoding of float bits " + std::to_string(bits_of(value)));
}

// ---- what one element of a reduction should be
// -------------------------------------------------------------------

// For floats, one operation in double and one rounding give the correctly rounded result in float.
template <class T>
T naive(ReduceOp op, T a, T b, double scalar, bool finish) {
  if constexpr (std::is_integral_v<T>) {
    __int128 x = a, y = b;
    switch (op) {
      case ReduceOp::sum:
        return T(x + y);
      case ReduceOp::avg:
        return finish ? T(__int128(T(x + y)) / __int128(scalar)) : T(x + y);
      case ReduceOp::product:
        return T(static_cast<unsigned __int128>(x) * static_cast<unsigned __int128>(y));
      case ReduceOp::min:
        return x < y ? a : b;
      case ReduceOp::max:
        return x > y ? a : b;
      case ReduceOp::band:
        return T(x & y);
      case ReduceOp::bor:
        return T(x | y);
      case ReduceOp::bxor:
        return T(x ^ y);
      default:
        throw check::Failure("no such reduction");
    }
  } else {
    switch (op) {
      case ReduceOp::sum:
        return a + b;
      case ReduceOp::avg:
        return finish ? (a + b) / T(scalar) : a + b;
      case ReduceOp::product:
        return a * b;
      case ReduceOp::min:
        return std::isnan(a) || std::isnan(b) ? T(NAN) : a < b ? a : b;
      case ReduceOp::max:
        return std::isnan(a) || std::isnan(b) ? T(NAN) : a > b ? a : b;
      case ReduceOp::premul_sum: {
        // Two roundings: the compiler must not make one of them.
        const volatile T product = b * T(scalar);
        return a + product;
      }
      default:
        throw check::Failure("no such reduction");
    }
  }
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
template <class Out, class A, class B, class F>
std::vector<Out> apply(F kernel, const std::vector<A>& a, const std::vector<B>& b, double scalar,
                       std::size_t shift, bool in_place) {
  std::vector<char> x(a.size() * sizeof(A) + 80), y(b.size() * sizeof(B) + 80),
      out(a.size() * sizeof(Out) + 80, 0x55);
  std::memcpy(x.data() + shift, a.data(), a.size() * sizeof(A));
  std::memcpy(y.data() + shift * 3, b.data(), b.size() * sizeof(B));
  char* to = in_place ? y.data() + shift * 3 : out.data() + shift * 5;
  kernel(to, x.data() + shift, y.data() + shift * 3, a.size(), scalar);
  if (!in_place) {
    for (std::size_t i = 0; i < shift * 5; ++i) CHECK(out[i] == 0x55);
    for (std::size_t i = shift * 5 + a.size() * sizeof(Out); i < out.size(); ++i) CHECK(out[i] == 0x55);
  }
  std::vector<Out> result(a.size());
  std::memcpy(result.data(), to, a.size() * sizeof(Out));
  return result;
}

// Wraps the loop over all inputs as a two-operand loop, with two inputs or with one (`b`).
auto of_two(const Reduction& reduction) {
  return [&reduction](void* out, const void* a, const void* b, std::size_t count, double scalar) {
    const std::byte* const inputs[] = {static_cast<const std::byte*>(a), static_cast<const std::byte*>(b)};
    const double scalars[] = {scalar, scalar};
    reduction.many(out, inputs, 2, count, scalars, {});
  };
}
auto of_one(const Reduction& reduction) {
  return [&reduction](void* out, const void*, const void* b, std::size_t count, double scalar) {
    const auto* const input = static_cast<const std::byte*>(b);
    reduction.many(out, &input, 1, count, &scalar, {});
  };
}

constexpr std::size_t kCounts[] = {0, 1, 2, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 1000, 4099};

// The divisor of AVG has to be whole; the factor of PREMUL_SUM should not be.
double scalar_for(ReduceOp op, int ranks) {
  return op == ReduceOp::premul_sum ? ranks * -0.37 : ranks;
}

template <class T>
void check_number(Dtype dtype) {
  std::mt19937_64 random(17);
  CHECK_EQ(size_of(dtype), sizeof(T));
  for (const auto& set : instruction_sets())
    for (const auto op : kOps) {
      const auto* reduction = set.find(dtype, op);
      CHECK_EQ(reduction != nullptr, has_meaning(dtype, op));
      if (!reduction) continue;
      const bool premul = op == ReduceOp::premul_sum;
      CHECK_EQ(reduction->partial_size, sizeof(T));
      CHECK(reduction->first == (premul ? nullptr : reduction->middle));
      CHECK_EQ(reduction->start != nullptr, premul);
      for (const auto count : kCounts)
        for (const int ranks : {2, 3, 200}) {
          const double scalar = scalar_for(op, ranks);
          const auto a = sample<T>(random, count), b = sample<T>(random, count);
          const std::size_t shift = random() % 9;
          const auto step = apply<T>(reduction->middle, a, b, scalar, shift, random() % 2);
          const auto last = apply<T>(reduction->last, a, b, scalar, shift, random() % 2);
          if (!premul) {
            const auto both = apply<T>(of_two(*reduction), a, b, scalar, shift, random() % 2);
            for (std::size_t i = 0; i < count; ++i) CHECK(same_value(both[i], last[i]));
          }
          for (std::size_t i = 0; i < count; ++i) {
            const T wanted_step = naive<T>(op, a[i], b[i], scalar, false),
                    wanted = naive<T>(op, a[i], b[i], scalar, true);
            if (!same_value(step[i], wanted_step) || !same_value(last[i], wanted)) {
              std::ostringstream text;
              text << to_string(dtype) << " " << to_string(op) << " of " << +a[i] << " and " << +b[i] << ": "
                   << +step[i] << " for " << +wanted_step << ", " << +last[i] << " for " << +wanted;
              throw check::Failure(text.str());
            }
          }
          if (!premul) continue;
          const auto start = apply<T>(reduction->start, a, b, scalar, shift, random() % 2);
          const auto alone = apply<T>(of_one(*reduction), a, b, scalar, shift, random() % 2);
          for (std::size_t i = 0; i < count; ++i) {
            CHECK(same_value(start[i], T(b[i] * T(scalar))));
            CHECK(same_value(alone[i], start[i]));
          }
        }
    }
}

// The parts of a sum are the sums of parts; a product follows the plain formula.
template <class T>
void check_complex(Dtype dtype) {
  std::mt19937_64 random(29);
  using Complex = std::complex<T>;
  CHECK_EQ(size_of(dtype), sizeof(Complex));
  const auto sample_complex = [&](std::size_t count) {
    const auto parts = sample<T>(random, 2 * count);
    std::vector<Complex> values;
    for (std::size_t i = 0; i < count; ++i) values.emplace_back(parts[2 * i], parts[2 * i + 1]);
    return values;
  };
  const auto wanted = [](ReduceOp op, Complex a, Complex b, double scalar, bool finish) {
    if (op != ReduceOp::product)
      return Complex(naive<T>(op, a.real(), b.real(), scalar, finish),
                     naive<T>(op, a.imag(), b.imag(), scalar, finish));
    const volatile T rr = a.real() * b.real(), ii = a.imag() * b.imag(), ri = a.real() * b.imag(),
                     ir = a.imag() * b.real();
    return Complex(rr - ii, ri + ir);
  };
  const auto same = [](Complex a, Complex b) {
    return same_value(a.real(), b.real()) && same_value(a.imag(), b.imag());
  };
  for (const auto& set : instruction_sets())
    for (const auto op : kOps) {
      const auto* reduction = set.find(dtype, op);
      CHECK_EQ(reduction != nullptr, has_meaning(dtype, op));
      if (!reduction) continue;
      CHECK_EQ(reduction->partial_size, sizeof(Complex));
      for (const auto count : kCounts) {
        const double scalar = scalar_for(op, 3);
        const auto a = sample_complex(count), b = sample_complex(count);
        const auto step = apply<Complex>(reduction->middle, a, b, scalar, random() % 9, random() % 2);
        const auto last = apply<Complex>(reduction->last, a, b, scalar, random() % 9, random() % 2);
        for (std::size_t i = 0; i < count; ++i) {
          CHECK(same(step[i], wanted(op, a[i], b[i], scalar, false)));
          CHECK(same(last[i], wanted(op, a[i], b[i], scalar, true)));
        }
        if (op != ReduceOp::premul_sum) {
          CHECK(reduction->first == reduction->middle && reduction->start == nullptr);
          const auto both = apply<Complex>(of_two(*reduction), a, b, scalar, random() % 9, random() % 2);
          for (std::size_t i = 0; i < count; ++i) CHECK(same(both[i], last[i]));
          continue;
        }
        CHECK(reduction->first == nullptr);
        const auto start = apply<Complex>(reduction->start, a, b, scalar, random() % 9, random() % 2);
        const auto alone = apply<Complex>(of_one(*reduction), a, b, scalar, random() % 9, random() % 2);
        for (std::size_t i = 0; i < count; ++i) {
          CHECK(same(start[i], Complex(b[i].real() * T(scalar), b[i].imag() * T(scalar))));
          CHECK(same(alone[i], start[i]));
        }
      }
    }
}

// Bits is the integer type of an element's bits.
template <class Bits>
void check_narrow(Dtype dtype, const Format& f) {
  std::mt19937_64 random(23);
  CHECK_EQ(size_of(dtype), sizeof(Bits));
  const auto wide = [&](Bits bits) { return float(decode(bits, f)); };
  const auto same = [&](Bits a, float b) { return same_bits(a, encode(b, f), f); };
  for (const auto& set : instruction_sets())
    for (const auto op : kOps) {
      const auto* reduction = set.find(dtype, op);
      CHECK_EQ(reduction != nullptr, has_meaning(dtype, op));
      if (!reduction) continue;
      const bool premul = op == ReduceOp::premul_sum;
      CHECK_EQ(reduction->start != nullptr, premul);
      for (const auto count : kCounts)
        for (const int ranks : {2, 3, 7}) {
          const double scalar = scalar_for(op, ranks);
          auto a = sample<Bits>(random, count), b = sample<Bits>(random, count);
          const auto partial = sample<float>(random, count);
          const std::size_t shift = random() % 9;
          if (!premul) {
            const auto only = apply<Bits>(of_two(*reduction), a, b, scalar, shift, random() % 2);
            for (std::size_t i = 0; i < count; ++i)
              CHECK(same(only[i], naive<float>(op, wide(a[i]), wide(b[i]), scalar, true)));
          }
          if (op == ReduceOp::min || op == ReduceOp::max) {
            CHECK_EQ(reduction->partial_size, sizeof(Bits));
            CHECK(reduction->first == reduction->middle && reduction->last == reduction->middle);
            const auto last = apply<Bits>(reduction->last, a, b, scalar, shift, random() % 2);
            for (std::size_t i = 0; i < count; ++i)
              CHECK(same(last[i], naive<float>(op, wide(a[i]), wide(b[i]), scalar, true)));
            continue;
          }
          CHECK_EQ(reduction->partial_size, sizeof(float));
          const auto first =
              apply<float>(premul ? reduction->start : reduction->first, a, b, scalar, shift, false);
          const auto middle = apply<float>(reduction->middle, partial, b, scalar, shift, false);
          const auto last = apply<Bits>(reduction->last, partial, b, scalar, shift, random() % 2);
          for (std::size_t i = 0; i < count; ++i) {
            const float started = wide(b[i]) * float(scalar);
            CHECK(same_float(first[i],
                             premul ? started : naive<float>(op, wide(a[i]), wide(b[i]), scalar, false)));
            CHECK(same_float(middle[i], naive<float>(op, partial[i], wide(b[i]), scalar, false)));
            CHECK(same(last[i], naive<float>(op, partial[i], wide(b[i]), scalar, true)));
          }
          if (!premul) continue;
          const auto alone = apply<Bits>(of_one(*reduction), a, b, scalar, shift, random() % 2);
          for (std::size_t i = 0; i < count; ++i) CHECK(same(alone[i], wide(b[i]) * float(scalar)));
        }
    }
}

}  // namespace

TEST(every_narrow_pattern_widens_exactly) {
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    CHECK(same_float(to_float<Float16>(bits), float(decode(bits, kHalf))));
    CHECK(same_float(to_float<Bfloat16>(bits), float(decode(bits, kBrain))));
    if (!is_nan(bits, kHalf)) CHECK_EQ(from_float<Float16>(to_float<Float16>(bits)), bits);
    if (!is_nan(bits, kBrain)) CHECK_EQ(from_float<Bfloat16>(to_float<Bfloat16>(bits)), bits);
  }
  for (std::uint32_t i = 0; i < 256; ++i) {
    const auto bits = static_cast<std::uint8_t>(i);
    CHECK(same_float(to_float<Float8E4M3>(bits), float(decode(bits, kE4M3))));
    CHECK(same_float(to_float<Float8E5M2>(bits), float(decode(bits, kE5M2))));
    if (!is_nan(bits, kE4M3)) CHECK_EQ(from_float<Float8E4M3>(to_float<Float8E4M3>(bits)), bits);
    if (!is_nan(bits, kE5M2)) CHECK_EQ(from_float<Float8E5M2>(to_float<Float8E5M2>(bits)), bits);
  }
}

TEST(floats_narrow_to_the_nearest_even) {
  // The numbers are around every representable value and every midpoint between two, and anywhere else.
  for (const auto& f : {kHalf, kBrain, kE4M3, kE5M2})
    for (std::uint32_t i = 0; i < 1u << f.width(); ++i) {
      const auto low = static_cast<std::uint16_t>(i), high = static_cast<std::uint16_t>(i + 1);
      const double a = decode(low, f), b = decode(high, f);
      if (!std::isfinite(a)) continue;
      const float middle =
          std::isfinite(b) ? float((a + b) / 2) : float(a + std::ldexp(a, -f.mantissa_bits - 2));
      for (const float value : {float(a), middle}) {
        check_encoding(value);
        check_encoding(std::nextafter(value, INFINITY));
        check_encoding(std::nextafter(value, -INFINITY));
      }
    }
  for (const float edge :
       {65504.f,    65519.996f, 65520.f,    65536.f,  3.4e38f,  0x1p-14f, 0x1p-24f, 0x1p-25f,
        0x1.8p-25f, 448.f,      464.f,      465.f,    480.f,    57344.f,  61439.f,  61440.f,
        0x1p-9f,    0x1p-10f,   0x1.8p-10f, 0x1p-16f, 0x1p-17f, INFINITY})
    check_encoding(edge), check_encoding(-edge);
  std::mt19937_64 random(5);
  for (int i = 0; i < 1'000'000; ++i) check_encoding(float_of(std::uint32_t(random())));
}

TEST(all_instruction_sets_agree_on_every_16_bit_pattern) {
  std::vector<std::uint16_t> all(65536), zero(65536, 0x8000), reversed(65536);
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] = std::uint16_t(i), reversed[i] = std::uint16_t(i * 40503u + 11);
  const auto& portable = instruction_sets().back();
  for (const auto& set : instruction_sets())
    for (const auto dtype : {Dtype::float16, Dtype::bfloat16})
      for (const auto op : kOps)
        for (const auto& other : {zero, reversed}) {
          const auto *machine = set.find(dtype, op), *plain = portable.find(dtype, op);
          if (!machine || !machine->first) continue;
          // Which of two NaNs an addition passes on is the compiler's choice: only that it is one must agree.
          const Format f = dtype == Dtype::float16 ? kHalf : kBrain;
          const auto c = apply<std::uint16_t>(of_two(*machine), all, other, 3, 0, false);
          const auto d = apply<std::uint16_t>(of_two(*plain), all, other, 3, 0, false);
          // Every NaN that becomes a bfloat16 becomes torch's.
          for (std::size_t i = 0; i < all.size(); ++i)
            CHECK(dtype == Dtype::bfloat16 ? c[i] == d[i] : same_bits(c[i], d[i], f));
          if (machine->partial_size != sizeof(float)) continue;
          const auto a = apply<float>(machine->first, all, other, 3, 0, false);
          const auto b = apply<float>(plain->first, all, other, 3, 0, false);
          for (std::size_t i = 0; i < all.size(); ++i) CHECK(same_float(a[i], b[i]));
        }
}

// Multiplies every element by many factors, which makes every rounding, ties too. The loops over all inputs
// load and store elements in other ways than those of partial results do.
template <class Bits>
void check_products(Dtype dtype, const Format& f, int random_factors) {
  std::mt19937_64 random(41);
  std::vector<Bits> all(std::size_t(1) << f.width());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = Bits(i);
  std::vector<float> factors = {1,       -1,         1.0625f,  0.9375f,    1.25f,    0.75f, 1.0009765625f,
                                0x1p-9f, 0x1.8p-10f, 0x1p-24f, 0x1.8p-12f, 0x1p-16f, 256,   0x1.000002p0f,
                                0x1p40f, 0x1p-40f,   0,        INFINITY,   NAN};
  for (int i = 0; i < random_factors; ++i)
    factors.push_back(std::ldexp(1.0f + float(random() % 4096) / 4096, int(random() % 48) - 24));
  for (const auto& set : instruction_sets())
    for (const float factor : factors) {
      const auto products =
          apply<Bits>(of_one(*set.find(dtype, ReduceOp::premul_sum)), all, all, factor, 0, false);
      for (std::size_t i = 0; i < all.size(); ++i) {
        const float wanted = float(decode(all[i], f)) * factor;
        if (same_bits(products[i], encode(wanted, f), f)) continue;
        std::ostringstream text;
        text << set.name << " " << to_string(dtype) << " bits " << i << " times " << factor << ": bits "
             << int(products[i]);
        throw check::Failure(text.str());
      }
    }
}

TEST(loops_over_all_inputs_round_to_the_nearest_even) {
  check_products<std::uint8_t>(Dtype::float8_e4m3fn, kE4M3, 3000);
  check_products<std::uint8_t>(Dtype::float8_e5m2, kE5M2, 3000);
  check_products<std::uint16_t>(Dtype::float16, kHalf, 8);
  check_products<std::uint16_t>(Dtype::bfloat16, kBrain, 8);
}

// torch.set_flush_denormal() must not change narrow subnormals, which are no subnormals of float32.
TEST(narrow_subnormals_survive_flushing) {
  const auto before = base::denormal_mode();
  const auto check = [&](auto bits, Dtype dtype) {
    std::vector<decltype(bits)> all(std::size_t(1) << (8 * sizeof bits));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = decltype(bits)(i);
    for (const auto& set : instruction_sets()) {
      const auto& reduction = *set.find(dtype, ReduceOp::product);
      const auto& sum = *set.find(dtype, ReduceOp::premul_sum);
      std::vector<float> ones(all.size(), 1.0f);
      base::set_denormal_mode(base::kFlushDenormals);
      const auto many = apply<decltype(bits)>(of_one(sum), all, all, 1, 0, false);
      const auto last = apply<decltype(bits)>(reduction.last, ones, all, 1, 0, false);
      base::set_denormal_mode(before);
      const Format f = dtype == Dtype::float16 ? kHalf : dtype == Dtype::float8_e5m2 ? kE5M2 : kE4M3;
      for (std::size_t i = 0; i < all.size(); ++i)
        CHECK(same_bits(many[i], all[i], f) && same_bits(last[i], all[i], f));
    }
  };
  check(std::uint16_t(), Dtype::float16);
  check(std::uint8_t(), Dtype::float8_e4m3fn);
  check(std::uint8_t(), Dtype::float8_e5m2);
}

// A bfloat16's subnormals are subnormals of float32. Sums of them are flushed, but MAX makes no new number.
TEST(the_larger_of_subnormals_survives_flushing) {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = std::uint16_t(i);
  const auto before = base::denormal_mode();
  for (const auto& set : instruction_sets()) {
    const auto& larger = *set.find(Dtype::bfloat16, ReduceOp::max);
    base::set_denormal_mode(base::kFlushDenormals);
    const auto result = apply<std::uint16_t>(of_two(larger), all, all, 1, 0, false);
    base::set_denormal_mode(before);
    for (std::size_t i = 0; i < all.size(); ++i) CHECK(same_bits(result[i], all[i], kBrain));
  }
}

// The loops divide integers as floats.
TEST(averages_of_integers_are_exact) {
  const auto check = [](auto number, Dtype dtype, const auto& values) {
    using T = decltype(number);
    const std::vector<T> zero(values.size());
    for (const auto& set : instruction_sets())
      for (const int divisor : {1, 2, 3, 5, 7, 11, 48, 127, 128, 129, 255, 256, 1000, 32767}) {
        const auto quotients =
            apply<T>(of_two(*set.find(dtype, ReduceOp::avg)), values, zero, divisor, 0, false);
        for (std::size_t i = 0; i < values.size(); ++i)
          CHECK_EQ(std::int64_t(quotients[i]), std::int64_t(values[i]) / divisor);
      }
  };
  const auto every = [](auto number) {
    std::vector<decltype(number)> values(std::size_t(1) << (8 * sizeof number));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = decltype(number)(i);
    return values;
  };
  check(std::int8_t(), Dtype::int8, every(std::int8_t()));
  check(std::uint8_t(), Dtype::uint8, every(std::uint8_t()));
  check(std::int16_t(), Dtype::int16, every(std::int16_t()));
  check(std::uint16_t(), Dtype::uint16, every(std::uint16_t()));
  std::mt19937_64 random(43);
  const auto around_multiples = [&](auto number) {
    std::vector<decltype(number)> values;
    for (const std::uint64_t divisor : {2, 3, 5, 7, 11, 48, 127, 1000, 32767})
      for (int i = 0; i < 1000; ++i)
        for (const int off : {-1, 0, 1})
          values.push_back(
              decltype(number)((random() % (0x100000000u / divisor)) * divisor + std::uint64_t(off)));
    return values;
  };
  check(std::int32_t(), Dtype::int32, around_multiples(std::int32_t()));
  check(std::uint32_t(), Dtype::uint32, around_multiples(std::uint32_t()));
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

TEST(narrow_floats) {
  check_narrow<std::uint16_t>(Dtype::float16, kHalf);
  check_narrow<std::uint16_t>(Dtype::bfloat16, kBrain);
  check_narrow<std::uint8_t>(Dtype::float8_e4m3fn, kE4M3);
  check_narrow<std::uint8_t>(Dtype::float8_e5m2, kE5M2);
}

TEST(complex_numbers) {
  check_complex<float>(Dtype::complex64);
  check_complex<double>(Dtype::complex128);
}

TEST(a_reduction_is_there_or_has_a_reason_not_to_be) {
  for (const auto dtype : kDtypes)
    for (const auto op : kOps) {
      CHECK_EQ(why_no_reduction(dtype, op) == nullptr, has_meaning(dtype, op));
      for (const auto& set : instruction_sets())
        CHECK_EQ(set.find(dtype, op) != nullptr, has_meaning(dtype, op));
    }
}

TEST(a_number_that_is_no_dtype_has_no_size_and_no_reduction) {
  const auto dtype = Dtype(std::size(kDtypes));
  CHECK_EQ(size_of(dtype), 0u);
  CHECK(why_no_reduction(dtype, ReduceOp::sum) != nullptr);
  for (const auto& set : instruction_sets()) CHECK(set.find(dtype, ReduceOp::sum) == nullptr);
}

TEST(booleans_are_0_or_1) {
  std::mt19937_64 random(3);
  for (const auto& set : instruction_sets()) {
    for (const auto op : kOps) {
      CHECK_EQ(set.find(Dtype::boolean, op) != nullptr, has_meaning(Dtype::boolean, op));
      if (!has_meaning(Dtype::boolean, op)) continue;
      for (const auto count : kCounts) {
        auto a = sample<std::uint8_t>(random, count), b = sample<std::uint8_t>(random, count);
        for (std::size_t i = 0; i < count; ++i)
          if (random() % 2) a[i] = 0, b[i] = std::uint8_t(b[i] * (random() % 2));
        const auto* reduction = set.find(Dtype::boolean, op);
        const auto result = apply<std::uint8_t>(of_two(*reduction), a, b, 2, random() % 9, random() % 2);
        const bool is_or = op == ReduceOp::sum || op == ReduceOp::max || op == ReduceOp::bor;
        for (std::size_t i = 0; i < count; ++i) {
          const bool x = a[i], y = b[i];
          CHECK_EQ(int(result[i]), int(op == ReduceOp::bxor ? x != y : is_or ? x || y : x && y));
        }
      }
    }
  }
}

TEST(names) {
  CHECK_EQ(describe({std::uint8_t(Collective::all_reduce), std::uint8_t(Dtype::float32),
                     std::uint8_t(ReduceOp::sum), 0, -1, 1024}),
           "all_reduce(float32, 1024 elements, SUM)");
  CHECK_EQ(describe({std::uint8_t(Collective::broadcast), std::uint8_t(Dtype::boolean), 0, 0, 3, 1}),
           "broadcast(bool, 1 element, root 3)");
  CHECK_EQ(describe({std::uint8_t(Collective::all_gather), std::uint8_t(Dtype::bfloat16), 0, 0, -1, 0}),
           "all_gather(bfloat16, 0 elements)");
  CHECK_EQ(describe({std::uint8_t(Collective::reduce), std::uint8_t(Dtype::float8_e5m2),
                     std::uint8_t(ReduceOp::premul_sum), 0, 2, 7}),
           "reduce(float8_e5m2, 7 elements, PREMUL_SUM, root 2)");
  CHECK_EQ(describe({std::uint8_t(Collective::reduce_scatter), std::uint8_t(Dtype::int16),
                     std::uint8_t(ReduceOp::bxor), 0, -1, 12, 0x1234}),
           "reduce_scatter(int16, 12 elements in uneven chunks #00001234, BXOR)");
  CHECK_EQ(describe({std::uint8_t(Collective::scatter), std::uint8_t(Dtype::complex64), 0, 0, 1, 5}),
           "scatter(complex64, 5 elements, root 1)");
  CHECK_EQ(describe({std::uint8_t(Collective::all_to_all), std::uint8_t(Dtype::uint64), 0, 0, -1, 0, 1}),
           "all_to_all(uint64, with splits)");
  CHECK_EQ(describe({std::uint8_t(Collective::barrier)}), "barrier()");
  CHECK_EQ(describe({250, 251, 252, 0, 0, 2}), "unknown collective(unknown dtype, 2 elements)");
}

TEST_MAIN
