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

struct And {
  template <class T>
  static VCCL_INLINE T apply(T a, T b) {
    return T(a & b);
  }
};

struct Or {
  template <class T>
  static VCCL_INLINE T apply(T a, T b) {
    return T(a | b);
  }
};

struct Xor {
  template <class T>
  static VCCL_INLINE T apply(T a, T b) {
    return T(a ^ b);
  }
};

template <class T, class Op>
void combine(void* out, const void* a, const void* b, std::size_t count, double) {
  each<T, T, T>(out, a, b, count, [](T x, T y) __attribute__((always_inline)) { return Op::apply(x, y); });
}

template <class T>
void average(void* out, const void* a, const void* b, std::size_t count, double ranks) {
  if constexpr (std::is_integral_v<T> && sizeof(T) <= 2) {
    // Vectors have no integer division. This one is exact: a quotient that is no whole number is at least 1 /
    // ranks away from the next one, far more than a double rounds.
    each<T, T, T>(out, a, b, count, [=](T x, T y) __attribute__((always_inline)) {
      return T(std::int32_t(double(std::int32_t(Sum::apply(x, y))) / ranks));
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

// Several vectors of accumulators go through all inputs before the next ones do: every input is one steady
// stream, which the processor fetches ahead. In pieces, one input after the other, it does not: from memory,
// 8 inputs took two to three times as long.
template <class T, bool kDivide>
void sum_many(void* out, const std::byte* const* inputs, int ranks, std::size_t count, double divisor) {
  typedef T Vector __attribute__((vector_size(32), aligned(1), may_alias));
  constexpr int kVectors = 4;
  constexpr std::size_t kStep = kVectors * sizeof(Vector) / sizeof(T);
  auto* o = static_cast<typename Packed<T>::type*>(out);
  const auto at = [&](int rank) __attribute__((always_inline)) {
    return reinterpret_cast<const typename Packed<T>::type*>(inputs[rank]);
  };
  const T by = T(divisor);
  std::size_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    Vector sum[kVectors];
    const auto* first = reinterpret_cast<const Vector*>(at(0) + i);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[v] = first[v];
    for (int rank = 1; rank < ranks; ++rank) {
      const auto* next = reinterpret_cast<const Vector*>(at(rank) + i);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[v] += next[v];
    }
    auto* to = reinterpret_cast<Vector*>(o + i);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) to[v] = kDivide ? sum[v] / by : sum[v];
  }
  for (; i < count; ++i) {
    T sum = at(0)[i];
    for (int rank = 1; rank < ranks; ++rank) sum += at(rank)[i];
    o[i] = kDivide ? sum / by : sum;
  }
}

template <class T>
void add_scaled(void* out, const void* a, const void* b, std::size_t count, double scalar) {
  const T factor = T(scalar);
  each<T, T, T>(out, a, b, count, [=](T x, T y) __attribute__((always_inline)) { return x + y * factor; });
}

template <class T>
void scale(void* out, const void*, const void* b, std::size_t count, double scalar) {
  const T factor = T(scalar);
  each<T, T, T>(out, b, b, count, [=](T, T y) __attribute__((always_inline)) { return y * factor; });
}

// Sums of complex numbers are sums of their parts, and so is what multiplies or divides them by a real one.
template <Kernel kParts>
void on_parts(void* out, const void* a, const void* b, std::size_t count, double scalar) {
  kParts(out, a, b, 2 * count, scalar);
}

// The plain formula, as torch has it: no second thoughts about infinities.
template <class T>
void multiply_complex(void* out, const void* a, const void* b, std::size_t count, double) {
  auto* o = static_cast<typename Packed<T>::type*>(out);
  auto* x = static_cast<const typename Packed<T>::type*>(a);
  auto* y = static_cast<const typename Packed<T>::type*>(b);
#pragma GCC ivdep
  for (std::size_t i = 0; i < 2 * count; i += 2) {
    const T real = x[i] * y[i] - x[i + 1] * y[i + 1], imaginary = x[i] * y[i + 1] + x[i + 1] * y[i];
    o[i] = real;
    o[i + 1] = imaginary;
  }
}

void any(void* out, const void* a, const void* b, std::size_t count, double) {
  using Byte = std::uint8_t;
  each<Byte, Byte, Byte>(out, a, b, count,
                         [](Byte x, Byte y) __attribute__((always_inline)) { return Byte((x | y) != 0); });
}

void all(void* out, const void* a, const void* b, std::size_t count, double) {
  using Byte = std::uint8_t;
  each<Byte, Byte, Byte>(out, a, b, count, [](Byte x, Byte y) __attribute__((always_inline)) {
    return Byte((x != 0) & (y != 0));
  });
}

void odd(void* out, const void* a, const void* b, std::size_t count, double) {
  using Byte = std::uint8_t;
  each<Byte, Byte, Byte>(out, a, b, count, [](Byte x, Byte y) __attribute__((always_inline)) {
    return Byte((x != 0) ^ (y != 0));
  });
}

struct Float8E4M3 {
  using Bits = std::uint8_t;
  static VCCL_INLINE float widen(Bits bits) { return float8_e4m3fn_to_float(bits); }
  static VCCL_INLINE Bits narrow(float value) { return float_to_float8_e4m3fn(value); }
};

struct Float8E5M2 {
  using Bits = std::uint8_t;
  static VCCL_INLINE float widen(Bits bits) { return float8_e5m2_to_float(bits); }
  static VCCL_INLINE Bits narrow(float value) { return float_to_float8_e5m2(value); }
};

// Loops over a float N of 16 or 8 bits. Where N has lanes, load() and store() do the bulk with the machine's
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

  using Bits = typename N::Bits;

  template <bool kWideOut, bool kWideA, class F>
  static VCCL_INLINE void loop(void* out, const void* a, const void* b, std::size_t count, F f) {
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

  static void only(void* out, const void* a, const void* b, std::size_t count, double scalar) {
    loop<false, false>(out, a, b, count, Finish{float(scalar)});
  }
  static void first(void* out, const void* a, const void* b, std::size_t count, double) {
    loop<true, false>(out, a, b, count, Step{});
  }
  static void middle(void* out, const void* a, const void* b, std::size_t count, double) {
    loop<true, true>(out, a, b, count, Step{});
  }
  static void last(void* out, const void* a, const void* b, std::size_t count, double scalar) {
    loop<false, true>(out, a, b, count, Finish{float(scalar)});
  }
};

template <class N>
struct NarrowScaled {
  using Loops = Narrow<N, Sum, false>;
  struct AddScaled {
    float factor;
    template <class T>
    VCCL_INLINE T operator()(T a, T b) const {
      return a + b * factor;
    }
  };
  struct Scale {
    float factor;
    template <class T>
    VCCL_INLINE T operator()(T, T b) const {
      return b * factor;
    }
  };

  static void middle(void* out, const void* a, const void* b, std::size_t count, double scalar) {
    Loops::template loop<true, true>(out, a, b, count, AddScaled{float(scalar)});
  }
  static void last(void* out, const void* a, const void* b, std::size_t count, double scalar) {
    Loops::template loop<false, true>(out, a, b, count, AddScaled{float(scalar)});
  }
  static void start(void* out, const void*, const void* b, std::size_t count, double scalar) {
    Loops::template loop<true, false>(out, b, b, count, Scale{float(scalar)});
  }
  static void alone(void* out, const void*, const void* b, std::size_t count, double scalar) {
    Loops::template loop<false, false>(out, b, b, count, Scale{float(scalar)});
  }
};

constexpr Reduction kNone = {};

constexpr Reduction same(Kernel step, Kernel last, std::size_t size) {
  return {last, step, step, last, size};
}

constexpr Reduction same(Kernel step, std::size_t size) {
  return same(step, step, size);
}

constexpr Reduction scaled(Kernel add, Kernel start, std::size_t size) {
  return {nullptr, nullptr, add, add, size, start, start};
}

constexpr Reduction with(Reduction reduction, ManyKernel many) {
  reduction.many = many;
  return reduction;
}

// The tables have one entry for each reduction, in the order of ReduceOp.
const Reduction* entry(const Reduction* table, ReduceOp op) {
  const Reduction& reduction = table[int(op)];
  return reduction.last ? &reduction : nullptr;
}

template <class T>
const Reduction* of_integer(ReduceOp op) {
  static constexpr Reduction kTable[] = {same(combine<T, Sum>, sizeof(T)),
                                         same(combine<T, Sum>, average<T>, sizeof(T)),
                                         same(combine<T, Product>, sizeof(T)),
                                         same(combine<T, Min>, sizeof(T)),
                                         same(combine<T, Max>, sizeof(T)),
                                         same(combine<T, And>, sizeof(T)),
                                         same(combine<T, Or>, sizeof(T)),
                                         same(combine<T, Xor>, sizeof(T)),
                                         kNone};
  return entry(kTable, op);
}

template <class T>
const Reduction* of_float(ReduceOp op) {
  static constexpr Reduction kTable[] = {
      with(same(combine<T, Sum>, sizeof(T)), sum_many<T, false>),
      with(same(combine<T, Sum>, average<T>, sizeof(T)), sum_many<T, true>),
      same(combine<T, Product>, sizeof(T)),
      same(combine<T, Min>, sizeof(T)),
      same(combine<T, Max>, sizeof(T)),
      kNone,
      kNone,
      kNone,
      scaled(add_scaled<T>, scale<T>, sizeof(T))};
  return entry(kTable, op);
}

// T is the type of the parts.
template <class T>
const Reduction* of_complex(ReduceOp op) {
  static constexpr std::size_t kSize = 2 * sizeof(T);
  static constexpr Reduction kTable[] = {same(on_parts<combine<T, Sum>>, kSize),
                                         same(on_parts<combine<T, Sum>>, on_parts<average<T>>, kSize),
                                         same(multiply_complex<T>, kSize),
                                         kNone,
                                         kNone,
                                         kNone,
                                         kNone,
                                         kNone,
                                         scaled(on_parts<add_scaled<T>>, on_parts<scale<T>>, kSize)};
  return entry(kTable, op);
}

template <class N, class Op, bool kDivide = false>
constexpr Reduction wide() {
  using Loops = Narrow<N, Op, kDivide>;
  return {Loops::only, Loops::first, Loops::middle, Loops::last, sizeof(float)};
}

// Neither MIN nor MAX makes a new number: nothing is rounded, and partial results stay narrow.
template <class N, class Op>
constexpr Reduction narrow() {
  return same(Narrow<N, Op, false>::only, sizeof(typename N::Bits));
}

template <class N>
const Reduction* of_narrow_float(ReduceOp op) {
  using Scaled = NarrowScaled<N>;
  static constexpr Reduction kTable[] = {
      wide<N, Sum>(),
      wide<N, Sum, true>(),
      wide<N, Product>(),
      narrow<N, Min>(),
      narrow<N, Max>(),
      kNone,
      kNone,
      kNone,
      {nullptr, nullptr, Scaled::middle, Scaled::last, sizeof(float), Scaled::start, Scaled::alone}};
  return entry(kTable, op);
}

const Reduction* of_bool(ReduceOp op) {
  static constexpr Reduction kAny = same(any, 1), kAll = same(all, 1), kOdd = same(odd, 1);
  static constexpr Reduction kTable[] = {kAny, kNone, kAll, kAll, kAny, kAll, kAny, kOdd, kNone};
  return entry(kTable, op);
}

const Reduction* find(Dtype dtype, ReduceOp op) {
  switch (dtype) {
    case Dtype::boolean:
      return of_bool(op);
    case Dtype::int8:
      return of_integer<std::int8_t>(op);
    case Dtype::int16:
      return of_integer<std::int16_t>(op);
    case Dtype::int32:
      return of_integer<std::int32_t>(op);
    case Dtype::int64:
      return of_integer<std::int64_t>(op);
    case Dtype::uint8:
      return of_integer<std::uint8_t>(op);
    case Dtype::uint16:
      return of_integer<std::uint16_t>(op);
    case Dtype::uint32:
      return of_integer<std::uint32_t>(op);
    case Dtype::uint64:
      return of_integer<std::uint64_t>(op);
    case Dtype::float16:
      return of_narrow_float<Float16>(op);
    case Dtype::bfloat16:
      return of_narrow_float<Bfloat16>(op);
    case Dtype::float32:
      return of_float<float>(op);
    case Dtype::float64:
      return of_float<double>(op);
    case Dtype::float8_e4m3fn:
      return of_narrow_float<Float8E4M3>(op);
    case Dtype::float8_e5m2:
      return of_narrow_float<Float8E5M2>(op);
    case Dtype::complex64:
      return of_complex<float>(op);
    case Dtype::complex128:
      return of_complex<double>(op);
    case Dtype::float8_e4m3fnuz:
    case Dtype::float8_e5m2fnuz:
    case Dtype::float8_e8m0fnu:
      break;
  }
  return nullptr;
}

}  // namespace
}  // namespace vccl
