// The loops behind reduction.hpp. Each instruction set's file includes this once, after the pragmas that
// choose the set. Everything here and in the two headers below has internal linkage, so that the linker does
// not merge a function compiled for a newer machine with another's. For the same reason nothing here calls
// the standard library.
//
// The including file must include <cstddef>, <cstdint>, <type_traits>, <utility>, kernels/reduction.hpp and
// base/past_caches.hpp before the pragmas. After them it includes narrow_floats.hpp, whose vectors would
// else be taken apart for the plain architecture, and vectors.hpp with what that needs.
#include "csrc_pg/collectives/kernels/arithmetic.hpp"

namespace vccl {
namespace {

// Several vectors of accumulators go through all inputs before the next ones do. So the processor reads every
// input in order and fetches it ahead, and partial results stay in registers. With one input after the other,
// a block at a time, the processor does not fetch ahead: from memory, 8 inputs took two to three times as
// long.
constexpr int kAccumulators = 4;

// The bytes that an interleaved reduction does at one place before it goes on at the next. Copies do
// kInterleavedBytes there (buffers/interleave.hpp).
constexpr std::size_t kReducedAtOnePlace = 256;

/// Gives the order of buffers/interleave.hpp, in elements: one block of each way after the other, and then
/// the rest.
struct Interleaving {
  const std::size_t block, ways, way_length;
  std::size_t way = 0, done = 0;  // the way whose block is next; the elements of each way that are done

  VCCL_INLINE Interleaving(std::size_t elements, std::size_t block, int ways)
      : block(block),
        ways(std::size_t(ways)),
        way_length(ways > 1 ? elements / std::size_t(ways) / block * block : 0) {}
  VCCL_INLINE bool is_rest() const { return done == way_length; }
  VCCL_INLINE std::size_t begin() const { return way * way_length + (is_rest() ? ways * way_length : done); }
  VCCL_INLINE void next() {
    if (++way == ways) way = 0, done += block;
  }
};

/// Reduces inputs with the arithmetic Op. The first input's elements have the format First, the others' Rest,
/// the result's Out. kRanks is the number of inputs, or 0 for any number.
template <class First, class Rest, class Out, class Op, int kRanks>
struct Loop {
  using V = Vector<typename First::Lane>;
  static constexpr int kVectors = First::kVectors;
  static_assert(Rest::kVectors == kVectors && Out::kVectors == kVectors);
  static constexpr std::size_t kStep = kVectors * kLanes<V>;  // elements
  static constexpr bool kPassesCaches = base::kStreamingStores && Out::kPassesCaches;

  /// Reduces kSteps steps of kStep elements. `input(rank)` returns where a rank's elements lie.
  template <int kSteps, class Input>
  static VCCL_INLINE void reduce(std::byte* out, Input input, int ranks, const Op& op,
                                 bool past_caches = false) {
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
    // The loop asks this for every few vectors, so that there need not be another loop.
    if (kPassesCaches && past_caches)
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

  /// Reduces the elements from `begin` to `end`, one by one. The result of the first goes to `out`.
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

  /// Reduces what is left, less than a step, in buffers of a step's length.
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

  /// Reduces the elements from `begin` to `end`. The result of the first goes to `out`.
  static __attribute__((noinline)) void run(std::byte* out, const std::byte* const* inputs, int ranks,
                                            std::size_t begin, std::size_t end, const double* scalars,
                                            LoopOptions options) {
    const Op op(scalars);
    std::size_t i = begin;
    const bool past_caches = options.stores == Stores::past_caches &&
                             reinterpret_cast<std::uintptr_t>(out) % base::kLineBytes == 0;
    const auto to = [&]() __attribute__((always_inline)) { return out + (i - begin) * Out::kElement; };
    const auto input = [&](int rank) __attribute__((always_inline)) {
      return inputs[rank] + i * (rank == 0 ? First::kElement : Rest::kElement);
    };
    constexpr int kSteps = kAccumulators / kVectors;
    static_assert(kReducedAtOnePlace % (kSteps * kStep * Out::kElement) == 0 || !Out::kPassesCaches);
    for (Interleaving order(end - begin, kReducedAtOnePlace / Out::kElement, options.ways);; order.next()) {
      i = begin + order.begin();
      const std::size_t stop = order.is_rest() ? end : i + order.block;
      for (; stop - i >= kSteps * kStep; i += kSteps * kStep)
        reduce<kSteps>(to(), input, ranks, op, past_caches);
      if (order.is_rest()) break;
    }
    if constexpr (kSteps > 1)
      for (; end - i >= kStep; i += kStep) reduce<1>(to(), input, ranks, op);
    if (i == end) return;
    if constexpr (!Op::kOfPairs)
      if (end - i <= First::kFew) return reduce_few(to(), inputs, ranks, i, end, op);
    reduce_rest(to(), inputs, ranks, i, end - i, op);
  }
};

/// Reduces the elements from `begin` to `end` of all inputs. The result of the first goes to `out`.
template <class Format, class Op>
VCCL_INLINE void reduce_range(void* out, const std::byte* const* inputs, int ranks, std::size_t begin,
                              std::size_t end, const double* scalars, LoopOptions options) {
  auto* to = static_cast<std::byte*>(out);
  if (ranks == 2)
    Loop<Format, Format, Format, Op, 2>::run(to, inputs, ranks, begin, end, scalars, options);
  else
    Loop<Format, Format, Format, Op, 0>::run(to, inputs, ranks, begin, end, scalars, options);
}

template <class Format, class Op>
void many(void* out, const std::byte* const* inputs, int ranks, std::size_t count, const double* scalars,
          LoopOptions options) {
  reduce_range<Format, Op>(out, inputs, ranks, 0, count, scalars, options);
}

/// Does one rank's step of a chain of ranks.
template <class First, class Rest, class Out, class Op>
void link(void* out, const void* a, const void* b, std::size_t count, double scalar) {
  const std::byte* inputs[] = {static_cast<const std::byte*>(a), static_cast<const std::byte*>(b)};
  const double scalars[] = {scalar, scalar};
  Loop<First, Rest, Out, Op, 2>::run(static_cast<std::byte*>(out), inputs, 2, 0, count, scalars, {});
}

/// Begins a chain of ranks: makes a partial result of the first rank's elements.
template <class From, class Out, class Op>
void start(void* out, const void*, const void* b, std::size_t count, double scalar) {
  const std::byte* inputs[] = {static_cast<const std::byte*>(b)};
  Loop<From, From, Out, Op, 1>::run(static_cast<std::byte*>(out), inputs, 1, 0, count, &scalar, {});
}

/// Reduces elements that are kParts numbers each.
template <ManyKernel kOfParts, int kParts>
void many_parts(void* out, const std::byte* const* inputs, int ranks, std::size_t count,
                const double* scalars, LoopOptions options) {
  kOfParts(out, inputs, ranks, kParts * count, scalars, options);
}
template <Kernel kOfParts, int kParts>
void link_parts(void* out, const void* a, const void* b, std::size_t count, double scalar) {
  kOfParts(out, a, b, kParts * count, scalar);
}

// Divides integers as C does. Vector instructions divide floats, but no integers. The division of floats is
// exact where they have more digits than T has bits: a quotient that is no whole number is at least 1 /
// divisor away from the next whole number, which is more than rounding changes it by. No float has enough
// digits for 64 bits: those are divided one by one.
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
    // A divisor of 1 is left out, because a quotient of 32 bits has no sign bit to spare.
    for (std::size_t i = 0; by > 1 && i < count; ++i) at[i] = T(std::int32_t(Float(at[i]) / divisor));
  }
}

// Sums a block and divides it while it is in the first-level cache.
template <class T>
void average_integers(void* out, const std::byte* const* inputs, int ranks, std::size_t count,
                      const double* scalars, LoopOptions options) {
  constexpr std::size_t kBlockBytes = 4096;
  auto* const to = static_cast<std::byte*>(out);
  alignas(64) std::byte beside[kBlockBytes];
  const auto average_block = [&](std::size_t begin, std::size_t end) {
    std::byte* const result = to + begin * sizeof(T);
    std::byte* const sums = options.stores == Stores::plain ? result : beside;
    reduce_range<Plain<std::make_unsigned_t<T>>, Sum>(sums, inputs, ranks, begin, end, scalars, {});
    divide<T>(sums, end - begin, scalars[0]);
    if (sums == beside) base::store_past_caches(result, beside, (end - begin) * sizeof(T));
  };
  Interleaving order(count, kReducedAtOnePlace / sizeof(T), options.ways);
  for (; !order.is_rest(); order.next()) average_block(order.begin(), order.begin() + order.block);
  constexpr std::size_t kBlock = kBlockBytes / sizeof(T);
  for (std::size_t at = order.begin(); at < count; at += kBlock)
    average_block(at, count - at < kBlock ? count : at + kBlock);
}
template <class T>
void average_two_integers(void* out, const void* a, const void* b, std::size_t count, double scalar) {
  const std::byte* inputs[] = {static_cast<const std::byte*>(a), static_cast<const std::byte*>(b)};
  average_integers<T>(out, inputs, 2, count, &scalar, {});
}

// ---- the tables, which have one entry for each reduction, in the order of ReduceOp

constexpr Reduction kNone = {};

const Reduction* entry(const Reduction* table, ReduceOp op) {
  const Reduction& reduction = table[int(op)];
  return reduction.many ? &reduction : nullptr;
}

/// Makes a reduction whose partial results have the format of its elements. Last is the arithmetic that ends
/// a chain.
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

/// Makes a reduction of elements that are kParts of another reduction's elements.
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
const Reduction* of_floating(ReduceOp op) {
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

// T is the type of the real and imaginary parts. A sum of complex numbers sums their parts, and a product
// with a real number or a quotient by one changes each part alike.
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
  // MIN and MAX make no new number, so nothing is rounded and partial results stay narrow.
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

// T is always std::uint8_t.
template <class T>
const Reduction* of_boolean(ReduceOp op) {
  static constexpr Reduction kAny = kBytes<Logical<Or>>, kAll = kBytes<Logical<And>>,
                             kOdd = kBytes<Logical<Xor>>;
  static constexpr Reduction kTable[] = {kAny, kNone, kAll, kAll, kAny, kAll, kAny, kOdd, kNone};
  return entry(kTable, op);
}

template <class>
const Reduction* of_opaque(ReduceOp) {
  return nullptr;
}

// This is a template so that only a file which calls it has all loops.
template <class = void>
const Reduction* find(Dtype dtype, ReduceOp op) {
#define VCCL_CASE(dtype, name, torch, bytes, kind, Number) \
  case Dtype::dtype:                                       \
    return of_##kind<Number>(op);
  switch (dtype) { VCCL_DTYPES(VCCL_CASE) }
#undef VCCL_CASE
  return nullptr;
}

}  // namespace
}  // namespace vccl
