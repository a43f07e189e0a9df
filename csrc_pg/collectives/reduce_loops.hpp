// The loops behind reduce_kernels.hpp. Included once per instruction set, after the pragmas that choose it:
// everything here has internal linkage, so that no function compiled for a newer machine is merged with
// another's. For the same reason nothing from the standard library is called.
//
// Needs before it: <cstddef>, <cstdint>, <type_traits>, narrow_floats.hpp, reduce_kernels.hpp, and the
// instruction set's structs Float16 and Bfloat16 (see reduce_portable.cpp).

namespace vccl {
namespace {

#define VCCL_INLINE inline __attribute__((always_inline))

// Peers' blocks lie where the peers' tensors lie: no alignment is assumed, and on x86 none is paid for.
template <class T>
struct Packed {
  typedef T type __attribute__((aligned(1), may_alias));
};

// `ivdep`: out may be a or b itself, in which case element i depends on element i only. Without it the
// compiler guards the vector loop with an overlap test, which an in-place call fails.
template <class Out, class A, class B, class F>
VCCL_INLINE void each(void* out, const void* a, const void* b, std::size_t count, F f) {
  auto* o = static_cast<typename Packed<Out>::type*>(out);
  auto* x = static_cast<const typename Packed<A>::type*>(a);
  auto* y = static_cast<const typename Packed<B>::type*>(b);
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) o[i] = f(x[i], y[i]);
}

// Wide enough that no product of two small integers overflows an int.
template <class T>
using Wrapping = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;

// T is a scalar, or a vector of floats.
struct Sum {
  template <class T>
  static VCCL_INLINE T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>)
      return T(Wrapping<T>(a) + Wrapping<T>(b));
    else
      return a + b;
  }
};

struct Product {
  template <class T>
  static VCCL_INLINE T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>)
      return T(Wrapping<T>(a) * Wrapping<T>(b));
    else
      return a * b;
  }
};

// A NaN in `a` fails a == a, one in `b` fails the comparison and is taken.
struct Min {
  template <class T>
  static VCCL_INLINE T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>)
      return a < b ? a : b;
    else
      return (a < b) | (a != a) ? a : b;
  }
};

struct Max {
  template <class T>
  static VCCL_INLINE T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>)
      return a > b ? a : b;
    else
      return (a > b) | (a != a) ? a : b;
  }
};

template <class T, class Op>
void combine(void* out, const void* a, const void* b, std::size_t count, int) {
  each<T, T, T>(out, a, b, count, [](T x, T y) __attribute__((always_inline)) { return Op::apply(x, y); });
}

template <class T>
void average(void* out, const void* a, const void* b, std::size_t count, int ranks) {
  if constexpr (std::is_integral_v<T> && sizeof(T) <= 2) {
    // Vectors have no integer division. This one is exact: a quotient that is no whole number is at least 1 /
    // ranks away from the next one, far more than a double rounds.
    const double divisor = ranks;
    each<T, T, T>(out, a, b, count, [=](T x, T y) __attribute__((always_inline)) {
      return T(std::int32_t(double(std::int32_t(Sum::apply(x, y))) / divisor));
    });
  } else if constexpr (std::is_integral_v<T>) {
    using Wide = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
    const Wide divisor = Wide(ranks);
    each<T, T, T>(out, a, b, count, [=](T x, T y) __attribute__((always_inline)) {
      return T(Wide(Sum::apply(x, y)) / divisor);
    });
  } else {
    const T divisor = T(ranks);
    each<T, T, T>(out, a, b, count,
                  [=](T x, T y) __attribute__((always_inline)) { return (x + y) / divisor; });
  }
}

void any(void* out, const void* a, const void* b, std::size_t count, int) {
  using Byte = std::uint8_t;
  each<Byte, Byte, Byte>(out, a, b, count,
                         [](Byte x, Byte y) __attribute__((always_inline)) { return Byte((x | y) != 0); });
}

void all(void* out, const void* a, const void* b, std::size_t count, int) {
  using Byte = std::uint8_t;
  each<Byte, Byte, Byte>(out, a, b, count, [](Byte x, Byte y) __attribute__((always_inline)) {
    return Byte((x != 0) & (y != 0));
  });
}

// Loops over a 16-bit float N. Where N has lanes, load() and store() do the bulk with the machine's
// conversions.
template <class N, class Op, bool kDivide>
struct Narrow {
  struct Finish {
    float divisor;
    template <class T>
    VCCL_INLINE T operator()(T a, T b) const {
      if constexpr (kDivide)
        return Op::apply(a, b) / divisor;
      else
        return Op::apply(a, b);
    }
  };
  struct Step {
    template <class T>
    VCCL_INLINE T operator()(T a, T b) const {
      return Op::apply(a, b);
    }
  };

  template <bool kWideOut, bool kWideA, class F>
  static VCCL_INLINE void loop(void* out, const void* a, const void* b, std::size_t count, F f) {
    using Bits = std::uint16_t;
    using Out = std::conditional_t<kWideOut, float, Bits>;
    using A = std::conditional_t<kWideA, float, Bits>;
    std::size_t done = 0;
    if constexpr (requires { N::kLanes; }) {
      auto* o = static_cast<char*>(out);
      auto* x = static_cast<const char*>(a);
      auto* y = static_cast<const char*>(b);
      for (; done + N::kLanes <= count; done += N::kLanes) {
        const auto u = load<N, kWideA>(x + done * sizeof(A));
        const auto v = load<N, false>(y + done * sizeof(Bits));
        store<N, kWideOut>(o + done * sizeof(Out), f(u, v));
      }
    }
    each<Out, A, Bits>(static_cast<char*>(out) + done * sizeof(Out),
                       static_cast<const char*>(a) + done * sizeof(A),
                       static_cast<const char*>(b) + done * sizeof(Bits), count - done,
                       [=](A x, Bits y) __attribute__((always_inline)) {
                         float u, r;
                         if constexpr (kWideA)
                           u = x;
                         else
                           u = N::widen(x);
                         r = f(u, N::widen(y));
                         if constexpr (kWideOut)
                           return r;
                         else
                           return N::narrow(r);
                       });
  }

  static void only(void* out, const void* a, const void* b, std::size_t count, int ranks) {
    loop<false, false>(out, a, b, count, Finish{float(ranks)});
  }
  static void first(void* out, const void* a, const void* b, std::size_t count, int) {
    loop<true, false>(out, a, b, count, Step{});
  }
  static void middle(void* out, const void* a, const void* b, std::size_t count, int) {
    loop<true, true>(out, a, b, count, Step{});
  }
  static void last(void* out, const void* a, const void* b, std::size_t count, int ranks) {
    loop<false, true>(out, a, b, count, Finish{float(ranks)});
  }
};

constexpr Reduction same(Kernel step, Kernel last, std::size_t size) {
  return {last, step, step, last, size};
}

template <class T>
const Reduction* of_number(ReduceOp op) {
  static constexpr Reduction kTable[] = {
      same(combine<T, Sum>, combine<T, Sum>, sizeof(T)),
      same(combine<T, Sum>, average<T>, sizeof(T)),
      same(combine<T, Product>, combine<T, Product>, sizeof(T)),
      same(combine<T, Min>, combine<T, Min>, sizeof(T)),
      same(combine<T, Max>, combine<T, Max>, sizeof(T)),
  };
  return &kTable[int(op)];
}

template <class N, class Op, bool kDivide = false>
constexpr Reduction wide() {
  using Loops = Narrow<N, Op, kDivide>;
  return {Loops::only, Loops::first, Loops::middle, Loops::last, sizeof(float)};
}

// Neither MIN nor MAX makes a new number: nothing is rounded, and partial results stay narrow.
template <class N, class Op>
constexpr Reduction narrow() {
  return same(Narrow<N, Op, false>::only, Narrow<N, Op, false>::only, sizeof(std::uint16_t));
}

template <class N>
const Reduction* of_narrow_float(ReduceOp op) {
  static constexpr Reduction kTable[] = {wide<N, Sum>(), wide<N, Sum, true>(), wide<N, Product>(),
                                         narrow<N, Min>(), narrow<N, Max>()};
  return &kTable[int(op)];
}

const Reduction* of_bool(ReduceOp op) {
  static constexpr Reduction kAny = same(any, any, 1), kAll = same(all, all, 1);
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::max:
      return &kAny;
    case ReduceOp::product:
    case ReduceOp::min:
      return &kAll;
    case ReduceOp::avg:
      break;
  }
  return nullptr;
}

const Reduction* find(Dtype dtype, ReduceOp op) {
  switch (dtype) {
    case Dtype::boolean:
      return of_bool(op);
    case Dtype::int8:
      return of_number<std::int8_t>(op);
    case Dtype::int16:
      return of_number<std::int16_t>(op);
    case Dtype::int32:
      return of_number<std::int32_t>(op);
    case Dtype::int64:
      return of_number<std::int64_t>(op);
    case Dtype::uint8:
      return of_number<std::uint8_t>(op);
    case Dtype::uint16:
      return of_number<std::uint16_t>(op);
    case Dtype::uint32:
      return of_number<std::uint32_t>(op);
    case Dtype::uint64:
      return of_number<std::uint64_t>(op);
    case Dtype::float16:
      return of_narrow_float<Float16>(op);
    case Dtype::bfloat16:
      return of_narrow_float<Bfloat16>(op);
    case Dtype::float32:
      return of_number<float>(op);
    case Dtype::float64:
      return of_number<double>(op);
  }
  return nullptr;
}

}  // namespace
}  // namespace vccl
