// The loops behind reduce_kernels.hpp. Included once per instruction set, after the pragmas that choose it:
// everything here and in the two headers below has internal linkage, so that no function compiled for a newer
// machine is merged with another's. For the same reason nothing from the standard library is called.
//
// Needs before it, and before the pragmas: <cstddef>, <cstdint>, <type_traits>, <utility>,
// reduce_kernels.hpp, transport/past_caches.hpp. After them: narrow_floats.hpp, whose vectors would else be
// taken apart for the plain architecture, and reduce_vectors.hpp with what it wants.
#include "csrc_pg/collectives/reduce_operations.hpp"

namespace vccl {
namespace {

// Several vectors of accumulators go through all inputs before the next ones do: every input is one steady
// stream, which the processor fetches ahead, and partial results stay in registers. In pieces, one input
// after the other, it is not: from memory, 8 inputs took two to three times as long.
constexpr int kAccumulators = 4;

// Of one strand at a time, where strands take turns.
constexpr std::size_t kRunOfStrand = 256;

/// The order of strands.hpp, in elements: one run of each strand after the other, and then the rest.
struct Turns {
  const std::size_t run, strands, strand;
  std::size_t number = 0, done = 0;  // of the strand whose turn it is; of every strand

  VCCL_INLINE Turns(std::size_t elements, std::size_t run, int strands)
      : run(run),
        strands(std::size_t(strands)),
        strand(strands > 1 ? elements / std::size_t(strands) / run * run : 0) {}
  VCCL_INLINE bool is_rest() const { return done == strand; }
  VCCL_INLINE std::size_t begin() const { return number * strand + (is_rest() ? strands * strand : done); }
  VCCL_INLINE void next() {
    if (++number == strands) number = 0, done += run;
  }
};

/// The first input's elements have the format First, the others' Rest, the result's Out. kRanks: how many
/// inputs there are, or 0 for any number.
template <class First, class Rest, class Out, class Op, int kRanks>
struct Loop {
  using V = Vector<typename First::Lane>;
  static constexpr int kVectors = First::kVectors;
  static_assert(Rest::kVectors == kVectors && Out::kVectors == kVectors);
  static constexpr std::size_t kStep = kVectors * kLanes<V>;  // elements
  static constexpr bool kStreams = kStreamingStores && Out::kStreams;

  /// kSteps steps of kStep elements. input(rank) is where a rank's lie.
  template <int kSteps, class Input>
  static VCCL_INLINE void reduce(std::byte* out, Input input, int ranks, const Op& op, bool stream = false) {
    if constexpr (kRanks > 0) ranks = kRanks;
    constexpr int kAll = kSteps * kVectors;
    V result[kAll], next[kAll];
    const std::byte* from = input(0);
#pragma GCC unroll 4
    for (int s = 0; s < kSteps; ++s)
      First::load_all(from + s * kStep * First::kElement, result + s * kVectors);
#pragma GCC unroll 4
    for (int v = 0; v < kAll; ++v) result[v] = op.begin(result[v]);
    for (int rank = 1; rank < ranks; ++rank) {
      from = input(rank);
#pragma GCC unroll 4
      for (int s = 0; s < kSteps; ++s) Rest::load_all(from + s * kStep * Rest::kElement, next + s * kVectors);
#pragma GCC unroll 4
      for (int v = 0; v < kAll; ++v) result[v] = op.step(result[v], next[v], rank);
    }
#pragma GCC unroll 4
    for (int v = 0; v < kAll; ++v) result[v] = op.end(result[v]);
    // Asked for every few vectors, so that there need not be another loop.
    if (kStreams && stream)
      store_steps<Stores::past_caches, kSteps>(out, result);
    else
      store_steps<Stores::plain, kSteps>(out, result);
  }

  template <Stores kStores, int kSteps>
  static VCCL_INLINE void store_steps(std::byte* out, const V* result) {
#pragma GCC unroll 4
    for (int s = 0; s < kSteps; ++s)
      Out::template store_all<kStores>(out + s * kStep * Out::kElement, result + s * kVectors);
  }

  /// The elements from `begin` to `end`; the result of the first goes to `out`.
  static VCCL_INLINE void reduce_few(std::byte* out, const std::byte* const* inputs, int ranks,
                                     std::size_t begin, std::size_t end, const Op& op) {
    if constexpr (kRanks > 0) ranks = kRanks;
    for (std::size_t i = begin; i < end; ++i) {
      typename First::Lane result = op.begin(First::load_one(inputs[0] + i * First::kElement));
      for (int rank = 1; rank < ranks; ++rank)
        result = op.step(result, Rest::load_one(inputs[rank] + i * Rest::kElement), rank);
      Out::store_one(out + (i - begin) * Out::kElement, op.end(result));
    }
  }

  /// What is left, less than a step, through buffers of a step's length.
  static VCCL_INLINE void reduce_rest(std::byte* out, const std::byte* const* inputs, int ranks,
                                      std::size_t begin, std::size_t count, const Op& op) {
    alignas(64) std::byte first[kStep * First::kElement], rest[kStep * Rest::kElement];
    alignas(64) std::byte result[kStep * Out::kElement];
    const auto input = [&](int rank) __attribute__((always_inline)) -> const std::byte* {
      if (rank == 0) return fetch_some(first, inputs[0] + begin * First::kElement, count * First::kElement);
      return fetch_some(rest, inputs[rank] + begin * Rest::kElement, count * Rest::kElement);
    };
    reduce<1>(result, input, ranks, op);
    put_some(out, result, count * Out::kElement);
  }

  /// The elements from `begin` to `end`; the result of the first goes to `out`.
  static __attribute__((noinline)) void run(std::byte* out, const std::byte* const* inputs, int ranks,
                                            std::size_t begin, std::size_t end, const double* scalars,
                                            Manner manner) {
    const Op op(scalars);
    std::size_t i = begin;
    const bool stream =
        manner.stores == Stores::past_caches && reinterpret_cast<std::uintptr_t>(out) % kLineBytes == 0;
    const auto to = [&]() __attribute__((always_inline)) { return out + (i - begin) * Out::kElement; };
    const auto input = [&](int rank) __attribute__((always_inline)) {
      return inputs[rank] + i * (rank == 0 ? First::kElement : Rest::kElement);
    };
    constexpr int kSteps = kAccumulators / kVectors;
    static_assert(kRunOfStrand % (kSteps * kStep * Out::kElement) == 0 || !Out::kStreams);
    for (Turns turns(end - begin, kRunOfStrand / Out::kElement, manner.strands);; turns.next()) {
      i = begin + turns.begin();
      const std::size_t stop = turns.is_rest() ? end : i + turns.run;
      for (; stop - i >= kSteps * kStep; i += kSteps * kStep) reduce<kSteps>(to(), input, ranks, op, stream);
      if (turns.is_rest()) break;
    }
    if constexpr (kSteps > 1)
      for (; end - i >= kStep; i += kStep) reduce<1>(to(), input, ranks, op);
    if (i == end) return;
    if constexpr (!Op::kOfPairs)
      if (end - i <= First::kFew) return reduce_few(to(), inputs, ranks, i, end, op);
    reduce_rest(to(), inputs, ranks, i, end - i, op);
  }
};

/// The elements from `begin` to `end`; the result of the first goes to `out`.
template <class Format, class Op>
VCCL_INLINE void reduce_range(void* out, const std::byte* const* inputs, int ranks, std::size_t begin,
                              std::size_t end, const double* scalars, Manner manner) {
  auto* to = static_cast<std::byte*>(out);
  if (ranks == 2)
    Loop<Format, Format, Format, Op, 2>::run(to, inputs, ranks, begin, end, scalars, manner);
  else
    Loop<Format, Format, Format, Op, 0>::run(to, inputs, ranks, begin, end, scalars, manner);
}

template <class Format, class Op>
void many(void* out, const std::byte* const* inputs, int ranks, std::size_t count, const double* scalars,
          Manner manner) {
  reduce_range<Format, Op>(out, inputs, ranks, 0, count, scalars, manner);
}

/// One link of a chain of ranks.
template <class First, class Rest, class Out, class Op>
void link(void* out, const void* a, const void* b, std::size_t count, double scalar) {
  const std::byte* inputs[] = {static_cast<const std::byte*>(a), static_cast<const std::byte*>(b)};
  const double scalars[] = {scalar, scalar};
  Loop<First, Rest, Out, Op, 2>::run(static_cast<std::byte*>(out), inputs, 2, 0, count, scalars, {});
}

/// The beginning of one.
template <class From, class Out, class Op>
void start(void* out, const void*, const void* b, std::size_t count, double scalar) {
  const std::byte* inputs[] = {static_cast<const std::byte*>(b)};
  Loop<From, From, Out, Op, 1>::run(static_cast<std::byte*>(out), inputs, 1, 0, count, &scalar, {});
}

/// Of elements that are kParts numbers each.
template <ManyKernel kOfParts, int kParts>
void many_parts(void* out, const std::byte* const* inputs, int ranks, std::size_t count,
                const double* scalars, Manner manner) {
  kOfParts(out, inputs, ranks, kParts * count, scalars, manner);
}
template <Kernel kOfParts, int kParts>
void link_parts(void* out, const void* a, const void* b, std::size_t count, double scalar) {
  kOfParts(out, a, b, kParts * count, scalar);
}

// Vectors have no integer division; of floats they have. With more digits than T has bits it is exact: a
// quotient that is no whole number is at least 1 / divisor away from the next one, which is more than
// rounding makes of it. Of 64 bits only processors divide.
template <class T>
__attribute__((optimize("tree-vectorize"))) void divide(void* numbers, std::size_t count, double by) {
  typedef T Unaligned __attribute__((aligned(1), may_alias));
  auto* const at = static_cast<Unaligned*>(numbers);
  if constexpr (sizeof(T) == 8) {
    const T divisor = T(by);
    for (std::size_t i = 0; i < count; ++i) at[i] /= divisor;
  } else {
    using Float = std::conditional_t<sizeof(T) == 4, double, float>;
    const Float divisor = Float(by);
    // Not for 1: a quotient of 32 bits has no sign bit to spare.
    for (std::size_t i = 0; by > 1 && i < count; ++i) at[i] = T(std::int32_t(Float(at[i]) / divisor));
  }
}

// A piece is divided while it is in the first-level cache.
template <class T>
void average_integers(void* out, const std::byte* const* inputs, int ranks, std::size_t count,
                      const double* scalars, Manner manner) {
  constexpr std::size_t kPieceBytes = 4096;
  auto* const to = static_cast<std::byte*>(out);
  alignas(64) std::byte beside[kPieceBytes];
  const auto piece = [&](std::size_t begin, std::size_t end) {
    std::byte* const result = to + begin * sizeof(T);
    std::byte* const sums = manner.stores == Stores::plain ? result : beside;
    reduce_range<Plain<std::make_unsigned_t<T>>, Sum>(sums, inputs, ranks, begin, end, scalars, {});
    divide<T>(sums, end - begin, scalars[0]);
    if (sums == beside) store_past_caches(result, beside, (end - begin) * sizeof(T));
  };
  Turns turns(count, kRunOfStrand / sizeof(T), manner.strands);
  for (; !turns.is_rest(); turns.next()) piece(turns.begin(), turns.begin() + turns.run);
  constexpr std::size_t kPiece = kPieceBytes / sizeof(T);
  for (std::size_t at = turns.begin(); at < count; at += kPiece)
    piece(at, count - at < kPiece ? count : at + kPiece);
}
template <class T>
void average_two_integers(void* out, const void* a, const void* b, std::size_t count, double scalar) {
  const std::byte* inputs[] = {static_cast<const std::byte*>(a), static_cast<const std::byte*>(b)};
  average_integers<T>(out, inputs, 2, count, &scalar, {});
}

// ---- the tables: one entry for each reduction, in the order of ReduceOp

constexpr Reduction kNone = {};

const Reduction* entry(const Reduction* table, ReduceOp op) {
  const Reduction& reduction = table[int(op)];
  return reduction.many ? &reduction : nullptr;
}

/// A reduction whose partial results look like its elements. Last: the operation that ends a chain.
template <class Format, class Step, class Last = Step>
constexpr Reduction same() {
  constexpr Kernel kStep = link<Format, Format, Format, Step>;
  return {many<Format, Last>, kStep, kStep, link<Format, Format, Format, Last>, Format::kElement};
}

template <class T>
constexpr Reduction scaled() {
  using Format = Plain<T>;
  constexpr Kernel kStep = link<Format, Format, Format, ScaledOnto<T>>;
  return {many<Format, Scaled<T>>, nullptr, kStep, kStep, sizeof(T), start<Format, Format, Scaled<T>>};
}

template <class T>
constexpr Reduction average() {
  constexpr Reduction kSum = same<Plain<std::make_unsigned_t<T>>, Sum>();
  return {average_integers<T>, kSum.first, kSum.middle, average_two_integers<T>, sizeof(T)};
}

/// Of elements that are kParts of another reduction's.
template <const Reduction& kOfParts, int kParts>
constexpr Reduction in_parts() {
  Reduction reduction = {many_parts<kOfParts.many, kParts>, nullptr, link_parts<kOfParts.middle, kParts>,
                         link_parts<kOfParts.last, kParts>, kParts * kOfParts.partial_size};
  if constexpr (kOfParts.first != nullptr) reduction.first = reduction.middle;
  if constexpr (kOfParts.start != nullptr) reduction.start = link_parts<kOfParts.start, kParts>;
  return reduction;
}

template <class Op>
constexpr Reduction kBytes = same<Plain<std::uint8_t>, Op>();

template <class T>
const Reduction* of_integer(ReduceOp op) {
  using Unsigned = Plain<std::make_unsigned_t<T>>;
  static constexpr Reduction kTable[] = {same<Unsigned, Sum>(),
                                         average<T>(),
                                         same<Unsigned, Product>(),
                                         same<Plain<T>, Min>(),
                                         same<Plain<T>, Max>(),
                                         in_parts<kBytes<And>, sizeof(T)>(),
                                         in_parts<kBytes<Or>, sizeof(T)>(),
                                         in_parts<kBytes<Xor>, sizeof(T)>(),
                                         kNone};
  return entry(kTable, op);
}

template <class T>
const Reduction* of_float(ReduceOp op) {
  static constexpr Reduction kTable[] = {same<Plain<T>, Sum>(),
                                         same<Plain<T>, Sum, Average<T>>(),
                                         same<Plain<T>, Product>(),
                                         same<Plain<T>, Min>(),
                                         same<Plain<T>, Max>(),
                                         kNone,
                                         kNone,
                                         kNone,
                                         scaled<T>()};
  return entry(kTable, op);
}

// T is the type of the parts. Sums of complex numbers are sums of their parts, and so is what multiplies or
// divides them by a real one.
template <class T>
const Reduction* of_complex(ReduceOp op) {
  static constexpr Reduction kSum = same<Plain<T>, Sum>(), kAverage = same<Plain<T>, Sum, Average<T>>(),
                             kProduct = same<Plain<T>, ComplexProduct>(), kScaled = scaled<T>();
  static constexpr Reduction kTable[] = {in_parts<kSum, 2>(),
                                         in_parts<kAverage, 2>(),
                                         in_parts<kProduct, 2>(),
                                         kNone,
                                         kNone,
                                         kNone,
                                         kNone,
                                         kNone,
                                         in_parts<kScaled, 2>()};
  return entry(kTable, op);
}

template <class N, class Step, class Last = Step>
constexpr Reduction widened() {
  using Element = Ordered<N>;
  using Wide = Partial<sizeof(typename N::Bits)>;
  return {many<Shuffled<N>, Last>, link<Element, Element, Wide, Step>, link<Wide, Element, Wide, Step>,
          link<Wide, Element, Element, Last>, sizeof(float)};
}

template <class N>
constexpr Reduction widened_and_scaled() {
  Reduction reduction = widened<N, ScaledOnto<float>>();
  reduction.many = many<Shuffled<N>, Scaled<float>>;
  reduction.first = nullptr;
  reduction.start = start<Ordered<N>, Partial<sizeof(typename N::Bits)>, Scaled<float>>;
  return reduction;
}

template <class N>
const Reduction* of_narrow_float(ReduceOp op) {
  // Neither MIN nor MAX makes a new number: nothing is rounded, and partial results stay narrow.
  static constexpr Reduction kTable[] = {widened<N, Sum>(),
                                         widened<N, Sum, Average<float>>(),
                                         widened<N, Product>(),
                                         same<Shuffled<N>, Min>(),
                                         same<Shuffled<N>, Max>(),
                                         kNone,
                                         kNone,
                                         kNone,
                                         widened_and_scaled<N>()};
  return entry(kTable, op);
}

const Reduction* of_bool(ReduceOp op) {
  static constexpr Reduction kAny = kBytes<Logical<Or>>, kAll = kBytes<Logical<And>>,
                             kOdd = kBytes<Logical<Xor>>;
  static constexpr Reduction kTable[] = {kAny, kNone, kAll, kAll, kAny, kAll, kAny, kOdd, kNone};
  return entry(kTable, op);
}

// A template, so that only who calls it has all loops.
template <class = void>
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
