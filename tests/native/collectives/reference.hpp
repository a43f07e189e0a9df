// What a collective should have done: random inputs that every rank can make again, and checks of one rank's
// output.
#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "csrc_pg/collectives/kernels/narrow_floats.hpp"
#include "tests/native/check.hpp"
#include "tests/native/collectives/cases.hpp"

namespace reference {

using namespace vccl;

template <class N, int digits, int min_exponent>
struct NarrowBits {
  typename N::Bits bits;
  static constexpr int kDigits = digits, kMinExponent = min_exponent;
  double value() const { return to_float<N>(bits); }
  static typename N::Bits from(float v) { return from_float<N>(v); }
};
using Float16Bits = NarrowBits<Float16, 11, -14>;
using Bfloat16Bits = NarrowBits<Bfloat16, 8, -126>;
using Float8E4M3Bits = NarrowBits<Float8E4M3, 4, -6>;
using Float8E5M2Bits = NarrowBits<Float8E5M2, 3, -14>;

template <class T>
constexpr bool kNarrow = requires { T::kDigits; };
template <class T>
constexpr bool kComplex = std::is_same_v<T, std::complex<float>> || std::is_same_v<T, std::complex<double>>;

/// Calls f with a value of the C++ type that stands for the dtype (bool and what can only be moved:
/// std::uint8_t).
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
    case Dtype::float8_e4m3fn:
      return f(Float8E4M3Bits());
    case Dtype::float8_e5m2:
      return f(Float8E5M2Bits());
    case Dtype::float8_e4m3fnuz:
    case Dtype::float8_e5m2fnuz:
    case Dtype::float8_e8m0fnu:
      return f(std::uint8_t());
    case Dtype::complex64:
      return f(std::complex<float>());
    case Dtype::complex128:
      return f(std::complex<double>());
  }
}

/// Returns the elements of the input of `rank`.
inline std::vector<std::byte> input_of(const Case& c, int size, int rank) {
  // This is xorshift, since every rank makes a long random buffer for every rank, under sanitizers too.
  std::uint64_t state = c.seed * 0x9e3779b97f4a7c15u + std::uint64_t(rank + 1) * 0xbf58476d1ce4e5b9u;
  const auto next = [&] {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
  };
  // The numbers are between 0.5 and 2 in size, so that products of a few stay in range.
  const auto real = [&] { return (0.5 + double(next() % 4096) / 4096 * 1.5) * (next() % 2 ? 1 : -1); };
  const auto fine = [&] { return double(next() % 1000003) * 1e-9; };
  const std::size_t count = input_count(c, size, rank);
  std::vector<std::byte> bytes(count * size_of(c.dtype));
  with_type(c.dtype, [&](auto type) {
    using T = decltype(type);
    auto* element = reinterpret_cast<T*>(bytes.data());
    for (std::size_t i = 0; i < count; ++i) {
      if constexpr (kNarrow<T>)
        element[i].bits = T::from(float(real()));
      else if constexpr (kComplex<T>)
        element[i] = T(real() + fine(), real() + fine());
      else if constexpr (std::is_floating_point_v<T>)
        element[i] = T(real() + fine());
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
      case ReduceOp::band:
        result &= v;
        break;
      case ReduceOp::bor:
        result |= v;
        break;
      case ReduceOp::bxor:
        result ^= v;
        break;
      case ReduceOp::premul_sum:
        throw check::Failure("PREMUL_SUM of integers");
    }
  }
  if (op == ReduceOp::avg && values.size() > 1) result /= Wide(values.size());
  return T(result);
}

/// Says what results are rounded to: their binary digits, the least exponent, and the digits of partial
/// results.
struct Rounding {
  int digits, least_exponent, partial_digits;
};

/// Returns whether `got` is what the values reduce to, up to what adding them in any order may round. The
/// values of PREMUL_SUM must be multiplied already.
inline bool close_enough(ReduceOp op, const std::vector<long double>& values, double got, Rounding rounding) {
  const auto ranks = double(values.size());
  if (op == ReduceOp::min) return got == *std::min_element(values.begin(), values.end());
  if (op == ReduceOp::max) return got == *std::max_element(values.begin(), values.end());
  long double exact = op == ReduceOp::product ? 1 : 0, size = 0;
  for (const long double v : values) {
    exact = op == ReduceOp::product ? exact * v : exact + v;
    size += std::fabs(v);
  }
  if (op == ReduceOp::product) size = std::fabs(exact);
  if (op == ReduceOp::avg) exact /= ranks, size /= ranks;
  if (values.size() == 1 && op != ReduceOp::premul_sum) return got == exact;
  // Each partial result is rounded by up to half a unit of partial_digits, and the result once more by half a
  // unit of its own digits. So a float16 that was rounded at every step fails here.
  const int exponent = std::max(std::ilogb(double(exact == 0 ? 1e-30L : exact)), rounding.least_exponent);
  const long double unit =
      rounding.digits < rounding.partial_digits ? std::ldexp(1.0L, exponent - rounding.digits) : 0;
  return std::fabs(got - exact) <= size * ranks * std::ldexp(1.0L, -rounding.partial_digits) + unit;
}

/// Does the same for complex numbers. The terms of a product may cancel, so its error is measured against its
/// size.
template <class T>
bool close_enough(ReduceOp op, const std::vector<std::complex<long double>>& values, std::complex<T> got) {
  constexpr int kDigits = std::numeric_limits<T>::digits;
  constexpr Rounding kRounding{kDigits, std::numeric_limits<T>::min_exponent, kDigits};
  if (op == ReduceOp::product) {
    std::complex<long double> exact = 1;
    for (const auto& v : values) exact *= v;
    return std::abs(std::complex<long double>(got) - exact) <=
           std::abs(exact) * 4 * (double(values.size()) - 1) * std::ldexp(1.0L, -kDigits);
  }
  std::vector<long double> real, imaginary;
  for (const auto& v : values) real.push_back(v.real()), imaginary.push_back(v.imag());
  return close_enough(op, real, got.real(), kRounding) && close_enough(op, imaginary, got.imag(), kRounding);
}

using Inputs = std::vector<std::vector<std::byte>>;

inline Inputs inputs_of(const Case& c, int size) {
  Inputs inputs;
  for (int rank = 0; rank < size; ++rank) inputs.push_back(input_of(c, size, rank));
  return inputs;
}

/// Returns whether `output` holds what elements `first` to `first + count` of all inputs reduce to.
inline void check_reduced(const Case& c, const Inputs& inputs, std::size_t first, std::size_t count,
                          const std::byte* output) {
  const int size = int(inputs.size());
  const bool premul = c.op == ReduceOp::premul_sum;
  with_type(c.dtype, [&](auto type) {
    using T = decltype(type);
    // The factor as the kernels have it: a float32 except for the widest.
    const auto factor = [&](int rank) -> long double {
      if (!premul) return 1;
      constexpr bool kDouble = std::is_same_v<T, double> || std::is_same_v<T, std::complex<double>>;
      return kDouble ? factor_of(c, rank) : double(float(factor_of(c, rank)));
    };
    const auto is_right = [&](std::size_t i) {
      T got;
      std::memcpy(&got, output + i * sizeof(T), sizeof(T));
      const auto at = [&](int rank) {
        return reinterpret_cast<const T*>(inputs[std::size_t(rank)].data())[first + i];
      };
      if constexpr (std::is_integral_v<T>) {
        std::vector<T> values;
        for (int rank = 0; rank < size; ++rank) values.push_back(at(rank));
        // On 0 and 1, "or" is MAX and "and" is MIN.
        ReduceOp op = c.op;
        if (c.dtype == Dtype::boolean && op == ReduceOp::sum) op = ReduceOp::max;
        if (c.dtype == Dtype::boolean && op == ReduceOp::product) op = ReduceOp::min;
        return got == reduce_integers(op, values);
      } else if constexpr (kComplex<T>) {
        std::vector<std::complex<long double>> values;
        for (int rank = 0; rank < size; ++rank)
          values.push_back(std::complex<long double>(at(rank)) * factor(rank));
        return close_enough(c.op, values, got);
      } else if constexpr (kNarrow<T>) {
        std::vector<long double> values;
        for (int rank = 0; rank < size; ++rank) values.push_back(at(rank).value() * factor(rank));
        return close_enough(c.op, values, got.value(), {T::kDigits, T::kMinExponent, 24});
      } else {
        std::vector<long double> values;
        for (int rank = 0; rank < size; ++rank) values.push_back(at(rank) * factor(rank));
        constexpr int kDigits = std::numeric_limits<T>::digits;
        return close_enough(c.op, values, got, {kDigits, std::numeric_limits<T>::min_exponent, kDigits});
      }
    };
    for (std::size_t i = 0; i < count; ++i)
      if (!is_right(i)) throw check::Failure("element " + std::to_string(i) + " of " + c.text(size));
  });
}

/// Throws check::Failure if the output of `rank` is not right.
inline void check_output(const Case& c, const Inputs& inputs, int rank, const std::byte* output) {
  const int size = int(inputs.size());
  const std::size_t element = size_of(c.dtype);
  // `count` elements at `to` in the output are those at `place` in the input of `from`.
  const auto expect = [&](std::size_t to, int from, std::size_t place, std::size_t count) {
    const std::byte* wanted = inputs[std::size_t(from)].data() + place * element;
    if (count > 0 && std::memcmp(wanted, output + to * element, count * element) != 0)
      throw check::Failure("chunk of rank " + std::to_string(from) + " at rank " + std::to_string(rank) +
                           " of " + c.text(size));
  };
  switch (c.collective) {
    case Collective::all_reduce:
      return check_reduced(c, inputs, 0, c.count, output);
    case Collective::reduce:
      if (rank == c.root) check_reduced(c, inputs, 0, c.count, output);
      return;
    case Collective::reduce_scatter:
      return check_reduced(c, inputs, input_offset(c, 0, rank), chunk_count(c, 0, rank), output);
    case Collective::broadcast:
      return expect(0, c.root, 0, c.count);
    case Collective::scatter:
      return expect(0, c.root, std::size_t(rank) * c.count, c.count);
    case Collective::gather:
      if (rank != c.root) return;
      [[fallthrough]];
    case Collective::all_gather:
      for (int from = 0; from < size; ++from)
        expect(output_offset(c, rank, from), from, 0, chunk_count(c, from, rank));
      return;
    case Collective::all_to_all:
      for (int from = 0; from < size; ++from)
        expect(output_offset(c, rank, from), from, input_offset(c, from, rank), chunk_count(c, from, rank));
      return;
    case Collective::barrier:
    case Collective::message:
      return;
  }
}

}  // namespace reference
