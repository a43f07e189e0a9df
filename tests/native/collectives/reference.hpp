// What a collective should have done: random inputs that every rank can make again, and checks of one rank's
// output.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "csrc_pg/collectives/narrow_floats.hpp"
#include "csrc_pg/collectives/types.hpp"
#include "tests/native/check.hpp"

namespace reference {

using namespace vccl;

constexpr Dtype kDtypes[] = {Dtype::boolean,  Dtype::int8,    Dtype::int16,  Dtype::int32,  Dtype::int64,
                             Dtype::uint8,    Dtype::uint16,  Dtype::uint32, Dtype::uint64, Dtype::float16,
                             Dtype::bfloat16, Dtype::float32, Dtype::float64};
constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::avg, ReduceOp::product, ReduceOp::min, ReduceOp::max};

/// A call without its memory, and where in the rank's memory it works.
struct Case {
  Collective collective = Collective::all_reduce;
  Dtype dtype = Dtype::float32;
  ReduceOp op = ReduceOp::sum;
  int root = -1;
  std::size_t count = 0;
  std::size_t shift = 0;  // elements from a page's beginning to the output
  bool in_place = true;
  std::uint64_t seed = 0;

  std::string text(int size) const {
    const Signature signature{std::uint8_t(collective), std::uint8_t(dtype), std::uint8_t(op), root, count};
    return describe(signature) + ", " + std::to_string(size) + " ranks, shift " + std::to_string(shift) +
           (in_place ? ", in place" : ", out of place") + ", seed " + std::to_string(seed);
  }
};

struct Float16Bits {
  std::uint16_t bits;
  static constexpr int kDigits = 11, kMinExponent = -14;
  double value() const { return half_to_float(bits); }
  static std::uint16_t from(float v) { return float_to_half(v); }
};
struct Bfloat16Bits {
  std::uint16_t bits;
  static constexpr int kDigits = 8, kMinExponent = -126;
  double value() const { return bfloat16_to_float(bits); }
  static std::uint16_t from(float v) { return float_to_bfloat16(v); }
};

template <class T>
constexpr bool kNarrow = std::is_same_v<T, Float16Bits> || std::is_same_v<T, Bfloat16Bits>;

/// Calls f with a value of the C++ type that stands for the dtype (bool: std::uint8_t).
template <class F>
void with_type(Dtype dtype, F f) {
  switch (dtype) {
    case Dtype::boolean:
      return f(std::uint8_t());
    case Dtype::int8:
      return f(std::int8_t());
    case Dtype::int16:
      return f(std::int16_t());
    case Dtype::int32:
      return f(std::int32_t());
    case Dtype::int64:
      return f(std::int64_t());
    case Dtype::uint8:
      return f(std::uint8_t());
    case Dtype::uint16:
      return f(std::uint16_t());
    case Dtype::uint32:
      return f(std::uint32_t());
    case Dtype::uint64:
      return f(std::uint64_t());
    case Dtype::float16:
      return f(Float16Bits());
    case Dtype::bfloat16:
      return f(Bfloat16Bits());
    case Dtype::float32:
      return f(float());
    case Dtype::float64:
      return f(double());
  }
}

/// The elements that `rank` brings.
inline std::vector<std::byte> input_of(const Case& c, int rank) {
  // xorshift: a long random buffer for every rank on every rank must be cheap, under sanitizers too.
  std::uint64_t state = c.seed * 0x9e3779b97f4a7c15u + std::uint64_t(rank + 1) * 0xbf58476d1ce4e5b9u;
  const auto next = [&] {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
  };
  std::vector<std::byte> bytes(c.count * size_of(c.dtype));
  with_type(c.dtype, [&](auto type) {
    using T = decltype(type);
    auto* element = reinterpret_cast<T*>(bytes.data());
    for (std::size_t i = 0; i < c.count; ++i) {
      // Between 0.5 and 2 in size: products of a few stay in range.
      const double real = (0.5 + double(next() % 4096) / 4096 * 1.5) * (next() % 2 ? 1 : -1);
      if constexpr (kNarrow<T>)
        element[i].bits = T::from(float(real));
      else if constexpr (std::is_floating_point_v<T>)
        element[i] = T(real + double(next() % 1000003) * 1e-9);
      else
        element[i] = c.dtype == Dtype::boolean ? T(next() % 3 == 0) : T(next());
    }
  });
  return bytes;
}

template <class T>
T reduce_integers(ReduceOp op, const std::vector<T>& values) {
  using Wide = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
  Wide result = values[0];
  for (std::size_t i = 1; i < values.size(); ++i) {
    const Wide v = values[i];
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::avg:
        result = T(result + v);
        break;
      case ReduceOp::product:
        result = T((unsigned __int128)result * (unsigned __int128)v);
        break;
      case ReduceOp::min:
        result = std::min(result, v);
        break;
      case ReduceOp::max:
        result = std::max(result, v);
        break;
    }
  }
  if (op == ReduceOp::avg && values.size() > 1) result /= Wide(values.size());
  return T(result);
}

/// Whether `got` is what the values reduce to, up to what adding them in any order may round.
inline bool close_enough(ReduceOp op, const std::vector<double>& values, double got, int digits,
                         int least_exponent, int partial_digits) {
  const auto ranks = double(values.size());
  if (op == ReduceOp::min) return got == *std::min_element(values.begin(), values.end());
  if (op == ReduceOp::max) return got == *std::max_element(values.begin(), values.end());
  long double exact = op == ReduceOp::product ? 1 : 0, size = 0;
  for (const double v : values) {
    exact = op == ReduceOp::product ? exact * v : exact + v;
    size += std::fabs(v);
  }
  if (op == ReduceOp::product) size = std::fabs(exact);
  if (op == ReduceOp::avg) exact /= ranks, size /= ranks;
  if (values.size() == 1) return got == double(exact);
  // Each of the partial results rounds by half a unit of partial_digits, and the result once more by half a
  // unit of its own digits: a float16 that was rounded at every step fails here.
  const long double unit =
      std::ldexp(1.0L, std::max(std::ilogb(double(exact == 0 ? 1e-30L : exact)), least_exponent) - digits);
  return std::fabs(got - exact) <=
         size * ranks * std::ldexp(1.0L, -partial_digits) + (digits < partial_digits ? unit : 0);
}

inline void check_all_reduce(const Case& c, int size, const std::byte* output) {
  std::vector<std::vector<std::byte>> inputs;
  for (int rank = 0; rank < size; ++rank) inputs.push_back(input_of(c, rank));
  const auto fail = [&](std::size_t i) {
    throw check::Failure("element " + std::to_string(i) + " of " + c.text(size));
  };
  with_type(c.dtype, [&](auto type) {
    using T = decltype(type);
    for (std::size_t i = 0; i < c.count; ++i) {
      T got;
      std::memcpy(&got, output + i * sizeof(T), sizeof(T));
      const auto at = [&](int rank) {
        return reinterpret_cast<const T*>(inputs[std::size_t(rank)].data())[i];
      };
      if constexpr (std::is_integral_v<T>) {
        std::vector<T> values;
        for (int rank = 0; rank < size; ++rank) values.push_back(at(rank));
        // On 0 and 1, "or" is MAX and "and" is MIN.
        ReduceOp op = c.op;
        if (c.dtype == Dtype::boolean && op == ReduceOp::sum) op = ReduceOp::max;
        if (c.dtype == Dtype::boolean && op == ReduceOp::product) op = ReduceOp::min;
        if (got != reduce_integers(op, values)) fail(i);
      } else {
        std::vector<double> values;
        if constexpr (kNarrow<T>) {
          for (int rank = 0; rank < size; ++rank) values.push_back(at(rank).value());
          if (!close_enough(c.op, values, got.value(), T::kDigits, T::kMinExponent, 24)) fail(i);
        } else {
          for (int rank = 0; rank < size; ++rank) values.push_back(at(rank));
          constexpr int kDigits = std::numeric_limits<T>::digits;
          if (!close_enough(c.op, values, got, kDigits, std::numeric_limits<T>::min_exponent, kDigits))
            fail(i);
        }
      }
    }
  });
}

/// Whether the output of `rank` is right. Throws check::Failure.
inline void check_output(const Case& c, int size, const std::byte* output) {
  const std::size_t bytes = c.count * size_of(c.dtype);
  const auto expect = [&](int rank, const std::byte* at) {
    const auto wanted = input_of(c, rank);
    if (bytes && std::memcmp(wanted.data(), at, bytes) != 0)
      throw check::Failure("part of rank " + std::to_string(rank) + " of " + c.text(size));
  };
  switch (c.collective) {
    case Collective::all_reduce:
      return check_all_reduce(c, size, output);
    case Collective::broadcast:
      return expect(c.root, output);
    case Collective::all_gather:
      for (int rank = 0; rank < size; ++rank) expect(rank, output + std::size_t(rank) * bytes);
      return;
    case Collective::barrier:
      return;
  }
}

/// Bytes of the output of a call of `c`.
inline std::size_t output_bytes(const Case& c, int size) {
  if (c.collective == Collective::barrier) return 0;
  return c.count * size_of(c.dtype) * (c.collective == Collective::all_gather ? std::size_t(size) : 1);
}

/// Random cases of all kinds, counts mostly where blocks and chunks end.
inline std::vector<Case> random_cases(std::uint64_t seed, int size, int how_many, std::size_t max_bytes) {
  std::mt19937_64 random(seed);
  std::vector<Case> cases;
  while (int(cases.size()) < how_many) {
    Case c;
    c.seed = random();
    c.collective = Collective(random() % 8 == 0 ? 3 : random() % 2 == 0 ? 0 : 1 + random() % 2);
    c.dtype = kDtypes[random() % std::size(kDtypes)];
    c.op = kOps[random() % std::size(kOps)];
    if (c.dtype == Dtype::boolean && c.op == ReduceOp::avg) continue;
    if (c.collective == Collective::broadcast) c.root = int(random() % std::uint64_t(size));
    const std::size_t element = size_of(c.dtype), n = std::size_t(size);
    const std::size_t most = max_bytes / element / (c.collective == Collective::all_gather ? n : 1);
    const std::size_t edges[] = {0,
                                 1,
                                 2,
                                 n - 1,
                                 n,
                                 n + 1,
                                 64 / element,
                                 64 / element * n,
                                 32768 / element,
                                 65536 / element,
                                 131072 / element,
                                 262144 / element,
                                 32768 / element * n,
                                 65536 / element * n,
                                 131072 / element * n,
                                 393216 / element * n};
    c.count = edges[random() % std::size(edges)] * (random() % 4 == 0 ? 2 : 1);
    const int nudge = int(random() % 4);
    if (nudge == 1) c.count += 1;
    if (nudge == 2 && c.count > 0) c.count -= 1;
    if (nudge == 3) c.count = random() % (random() % 2 ? 3000 : most + 1);
    if (c.count > most) c.count = random() % (most + 1);
    c.shift = random() % 2 ? random() % 70 : 0;
    c.in_place = random() % 2;
    cases.push_back(c);
  }
  return cases;
}

}  // namespace reference
