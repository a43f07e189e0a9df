// The arithmetic of reductions, on vectors of elements or on single ones. loops.hpp includes this, and says
// how it is included itself.
//
// begin() takes the first rank's elements, step() adds those of each further rank, and end() makes the
// result.

namespace vccl {
namespace {

template <class V>
struct LaneOf {
  using Type = std::remove_cvref_t<decltype(V{}[0])>;
};
template <class V>
  requires std::is_arithmetic_v<V>
struct LaneOf<V> {
  using Type = V;
};
template <class V>
constexpr bool kOfIntegers = std::is_integral_v<typename LaneOf<V>::Type>;

struct Arithmetic {
  static constexpr bool kOfPairs = false;  // whether it takes lanes in pairs, as complex numbers have them
  explicit Arithmetic(const double*) {}
  template <class V>
  VCCL_INLINE V begin(V first) const {
    return first;
  }
  template <class V>
  VCCL_INLINE V end(V result) const {
    return result;
  }
};

struct Sum : Arithmetic {
  using Arithmetic::Arithmetic;
  template <class V>
  VCCL_INLINE V step(V a, V b, int) const {
    return a + b;
  }
};

/// Averages floats.
template <class T>
struct Average : Sum {
  explicit Average(const double* scalars) : Sum(scalars), divisor(T(*scalars)) {}
  template <class V>
  VCCL_INLINE V end(V sum) const {
    return sum / divisor;
  }
  T divisor;
};

/// Adds elements, multiplied by their rank's factor, to a partial result of PREMUL_SUM.
template <class T>
struct ScaledOnto : Arithmetic {
  explicit ScaledOnto(const double* scalars) : Arithmetic(scalars), factors(scalars) {}
  template <class V>
  VCCL_INLINE V step(V a, V b, int rank) const {
    return a + b * T(factors[rank]);
  }
  const double* factors;
};

/// Multiplies the first rank's elements as well.
template <class T>
struct Scaled : ScaledOnto<T> {
  using ScaledOnto<T>::ScaledOnto;
  template <class V>
  VCCL_INLINE V begin(V first) const {
    return first * T(this->factors[0]);
  }
};

struct Product : Arithmetic {
  using Arithmetic::Arithmetic;
  template <class V>
  VCCL_INLINE V step(V a, V b, int) const {
    if constexpr (std::is_integral_v<V> && sizeof(V) < 4)
      return V(std::uint32_t(a) * b);  // an int would overflow
    else
      return a * b;
  }
};

/// Takes the larger or the smaller of two. A comparison with NaN is false, and so takes b. Where a is the
/// NaN, it must be a instead.
template <bool kLarger>
struct Extreme : Arithmetic {
  using Arithmetic::Arithmetic;
  template <class V>
  VCCL_INLINE V step(V a, V b, int) const {
    V found;
    if constexpr (kLarger)
      found = a > b ? a : b;
    else
      found = a < b ? a : b;
    if constexpr (kOfIntegers<V>)
      return found;
    else
      return a == a ? found : a;
  }
};
using Min = Extreme<false>;
using Max = Extreme<true>;

struct And : Arithmetic {
  using Arithmetic::Arithmetic;
  template <class V>
  VCCL_INLINE V step(V a, V b, int) const {
    return a & b;
  }
};

struct Or : Arithmetic {
  using Arithmetic::Arithmetic;
  template <class V>
  VCCL_INLINE V step(V a, V b, int) const {
    return a | b;
  }
};

struct Xor : Arithmetic {
  using Arithmetic::Arithmetic;
  template <class V>
  VCCL_INLINE V step(V a, V b, int) const {
    return a ^ b;
  }
};

/// Reduces booleans with Op, after it has made every byte 0 or 1.
template <class Op>
struct Logical : Op {
  using Op::Op;
  template <class V>
  static VCCL_INLINE V truth(V bytes) {
    return bytes < 1 ? bytes : V{} + 1;
  }
  template <class V>
  VCCL_INLINE V begin(V first) const {
    return truth(first);
  }
  template <class V>
  VCCL_INLINE V step(V a, V b, int rank) const {
    return Op::step(a, truth(b), rank);
  }
};

/// Multiplies complex numbers by the plain formula, as torch does, without the corrections for infinities
/// that C makes. Lanes alternate between real and imaginary parts.
struct ComplexProduct : Arithmetic {
  using Arithmetic::Arithmetic;
  static constexpr bool kOfPairs = true;

  template <class V>
  VCCL_INLINE V step(V a, V b, int) const {
    return step(a, b, std::make_index_sequence<kLanes<V>>());
  }
  template <class V, std::size_t... I>
  static VCCL_INLINE V step(V a, V b, std::index_sequence<I...>) {
    using Lane = std::remove_cvref_t<decltype(V{}[0])>;
    using Integer = std::conditional_t<sizeof(Lane) == 8, std::uint64_t, std::uint32_t>;
    using Integers = Vector<Integer>;
    constexpr Integer kSign = Integer(1) << (8 * sizeof(Lane) - 1);
    const Integers real = {Integer(I & ~std::size_t(1))...}, imaginary = {Integer(I | 1)...};
    const Integers other = {Integer(I ^ 1)...}, minus = {(I & 1 ? Integer(0) : kSign)...};
    const V straight = __builtin_shuffle(a, real) * b;
    const V crossed = __builtin_shuffle(a, imaginary) * __builtin_shuffle(b, other);
    return straight + __builtin_bit_cast(V, __builtin_bit_cast(Integers, crossed) ^ minus);
  }
};

}  // namespace
}  // namespace vccl
