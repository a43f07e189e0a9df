// How elements lie in memory and in vectors. loops.hpp needs this, and says how it is included.
//
// The including file defines kVectorBytes before it includes this. After it, the file defines a struct
// Machine with those of the following functions that the machine has instructions for:
//
//   Floats widen_float16(Part<std::uint16_t>)
//   void store_float16(std::byte* to, Floats)
//   Halves pack_float16(const Floats*): narrows two vectors
//   Halves pack(Words low, Words high): packs numbers of less than 16 bits
//   void store_bfloat16(std::byte* to, Floats)
//   Halves pack_bfloat16(const Floats*): narrows two vectors
//   Words load_some(const std::byte* from, std::size_t bytes),
//   void store_some(std::byte* to, const std::byte* vector, std::size_t bytes):
//     move the first `bytes` of a vector, or all of it if `bytes` is more, and touch nothing beyond
//   void store_past_caches(std::byte* to, V vector)

namespace vccl {
namespace {

struct Machine;

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(kVectorBytes)));
};
template <class T>
using Vector = typename VectorOf<T>::type;

template <class V>
constexpr int kLanes = sizeof(V) / sizeof(V{}[0]);

using Floats = Vector<float>;
using Words = Vector<std::uint32_t>;
using Halves = Vector<std::uint16_t>;

/// Has as many elements of Bits as a vector has floats.
template <class Bits>
struct PartOf {
  typedef Bits type __attribute__((vector_size(sizeof(Bits) * kLanes<Floats>)));
};
template <class Bits>
using Part = typename PartOf<Bits>::type;

// Peers' blocks lie where the peers' tensors lie, so no alignment is assumed. On x86 this costs nothing.
template <class V>
VCCL_INLINE V load(const std::byte* from) {
  V value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

template <Stores kStores = Stores::plain, class M = Machine, class V>
VCCL_INLINE void store(std::byte* to, V value) {
  if constexpr (kStores == Stores::past_caches && requires { M::store_past_caches(to, value); })
    M::store_past_caches(to, value);
  else
    __builtin_memcpy(to, &value, sizeof value);
}

template <class M>
concept LoadsSome = requires { &M::load_some; };

// Moves less than a step from memory to a buffer of whole vectors. The processor cannot load a vector whose
// bytes come from several stores before all of them are in the cache, which takes 8 ns an input. So the
// buffer is filled by whole vectors where the machine has the instructions.
template <std::size_t kSize, class M = Machine>
VCCL_INLINE const std::byte* fetch_some(std::byte (&buffer)[kSize], const std::byte* from,
                                        std::size_t bytes) {
  if constexpr (LoadsSome<M>) {
#pragma GCC unroll 4
    for (std::size_t at = 0; at < kSize; at += kVectorBytes)
      store(buffer + at, M::load_some(from + at, bytes > at ? bytes - at : 0));
  } else {
    __builtin_memset(buffer, 0, kSize);
    __builtin_memcpy(buffer, from, bytes);
  }
  return buffer;
}

template <std::size_t kSize, class M = Machine>
VCCL_INLINE void put_some(std::byte* to, const std::byte (&buffer)[kSize], std::size_t bytes) {
  if constexpr (LoadsSome<M>) {
#pragma GCC unroll 4
    for (std::size_t at = 0; at < kSize; at += kVectorBytes)
      M::store_some(to + at, buffer + at, bytes > at ? bytes - at : 0);
  } else {
    __builtin_memcpy(to, buffer, bytes);
  }
}

// A format has elements of kElement bytes. load_all() and store_all() move kVectors vectors of Lane at once,
// load_one() and store_one() move a single element. Up to kFew elements that are left over are quicker one by
// one. If kPassesCaches is true, store_all() can store past the caches.

/// The format of elements that are computed with as they are. T is unsigned where signs do not matter.
template <class T>
struct Plain {
  using Lane = T;
  static constexpr int kElement = sizeof(T), kVectors = 1, kFew = 8;
  static constexpr bool kPassesCaches = true;
  static VCCL_INLINE T load_one(const std::byte* from) { return load<T>(from); }
  static VCCL_INLINE void store_one(std::byte* to, T value) { store(to, value); }
  static VCCL_INLINE void load_all(const std::byte* from, Vector<T>* to) { *to = load<Vector<T>>(from); }
  template <Stores kStores>
  static VCCL_INLINE void store_all(std::byte* to, const Vector<T>* from) {
    store<kStores>(to, *from);
  }
};

/// The format of partial results of floats of `kSize` bytes.
template <int kSize>
struct Partial {
  using Lane = float;
  static constexpr int kElement = sizeof(float), kVectors = sizeof(float) / kSize, kFew = 4;
  static constexpr bool kPassesCaches = false;
  static VCCL_INLINE float load_one(const std::byte* from) { return load<float>(from); }
  static VCCL_INLINE void store_one(std::byte* to, float value) { store(to, value); }
  static VCCL_INLINE void load_all(const std::byte* from, Vector<float>* to) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) to[v] = load<Vector<float>>(from + v * kVectorBytes);
  }
  template <Stores>
  static VCCL_INLINE void store_all(std::byte* to, const Vector<float>* from) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) store(to + v * kVectorBytes, from[v]);
  }
};

/// What the formats of floats N of 16 or 8 bits have in common.
template <class N>
struct Narrow {
  using Lane = float;
  static constexpr int kElement = sizeof(typename N::Bits), kVectors = sizeof(float) / kElement, kFew = 4;
  static VCCL_INLINE float load_one(const std::byte* from) {
    return to_float<N>(load<typename N::Bits>(from));
  }
  static VCCL_INLINE void store_one(std::byte* to, float value) { store(to, from_float<N>(value)); }
};

/// Is true for 8-bit floats that become float16 in few steps, on a machine that widens float16.
template <class N, class M>
concept ThroughFloat16 = requires { &M::widen_float16, N::kFloat16Scale; };

template <class N, class M>
VCCL_INLINE Floats widen_through_float16(Part<std::uint16_t> float16) {
  return M::widen_float16(float16) * N::kFloat16Scale;
}

/// Returns the lower half of a vector (0) or the upper one (1).
template <int kWhich>
VCCL_INLINE Part<std::uint16_t> part_of(Halves halves) {
  return [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
    return __builtin_shufflevector(halves, halves, (kWhich * kLanes<Floats> + I)...);
  }(std::make_integer_sequence<int, kLanes<Floats>>());
}

/// The format of floats N of 16 or 8 bits whose lanes are in the order of elements, as partial results need
/// it.
template <class N, class M = Machine>
struct Ordered : Narrow<N> {
  using Narrow<N>::kElement, Narrow<N>::kVectors;
  using Elements = Part<typename N::Bits>;
  // Whether the machine has instructions that convert N. Widening a bfloat16 is a shift in any case.
  static constexpr bool kConvertsFloat16 = std::is_same_v<N, Float16> && requires { &M::widen_float16; };
  static constexpr bool kConvertsBfloat16 = std::is_same_v<N, Bfloat16> && requires { &M::store_bfloat16; };
  static constexpr bool kConverts = kConvertsFloat16 || kConvertsBfloat16;
  static constexpr bool kPassesCaches = false;

  static VCCL_INLINE void load_all(const std::byte* from, Floats* to) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const auto elements = load<Elements>(from + v * sizeof(Elements));
      if constexpr (kConvertsFloat16)
        to[v] = M::widen_float16(elements);
      else if constexpr (ThroughFloat16<N, M>)
        to[v] = widen_through_float16<N, M>(
            N::float16_of_low(__builtin_convertvector(elements, Part<std::uint16_t>)));
      else
        to[v] = N::widen(__builtin_convertvector(elements, Words) << (32 - 8 * kElement));
    }
  }
  template <Stores>
  static VCCL_INLINE void store_all(std::byte* to, const Floats* from) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      if constexpr (kConvertsFloat16)
        M::store_float16(to + v * sizeof(Elements), from[v]);
      else if constexpr (kConvertsBfloat16)
        M::store_bfloat16(to + v * sizeof(Elements), from[v]);
      else
        store(to + v * sizeof(Elements), __builtin_convertvector(N::narrow(from[v]), Elements));
  }
};

/// The format of floats N of 16 or 8 bits whose lanes are in whatever order is quickest: the first vector has
/// the element at the lower end of every 32 bits, and so on, or all even bytes come before the odd ones.
template <class N, class M = Machine>
struct Shuffled : Narrow<N> {
  using Narrow<N>::kElement, Narrow<N>::kVectors;
  static constexpr bool kPassesCaches = true;

  static VCCL_INLINE void load_all(const std::byte* from, Floats* to) {
    if constexpr (ThroughFloat16<N, M>) {
      const auto bytes = load<Halves>(from);
      const Halves even = N::float16_of_low(bytes), odd = N::float16_of_high(bytes);
      to[0] = widen_through_float16<N, M>(part_of<0>(even));
      to[1] = widen_through_float16<N, M>(part_of<1>(even));
      to[2] = widen_through_float16<N, M>(part_of<0>(odd));
      to[3] = widen_through_float16<N, M>(part_of<1>(odd));
    } else if constexpr (Ordered<N>::kConverts) {
      Ordered<N>::load_all(from, to);
    } else {
      const auto words = load<Words>(from);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) to[v] = N::widen(Words(words << (32 - 8 * kElement * (v + 1))));
    }
  }
  template <Stores kStores>
  static VCCL_INLINE void store_all(std::byte* to, const Floats* from) {
    if constexpr (ThroughFloat16<N, M>) {
      const Halves even = M::pack(N::narrow(from[0]), N::narrow(from[1]));
      const Halves odd = M::pack(N::narrow(from[2]), N::narrow(from[3]));
      store<kStores>(to, even | odd << 8);
    } else if constexpr (Ordered<N>::kConvertsFloat16 && kStores == Stores::past_caches) {
      store<kStores>(to, M::pack_float16(from));
    } else if constexpr (Ordered<N>::kConvertsBfloat16) {
      store<kStores>(to, M::pack_bfloat16(from));
    } else if constexpr (Ordered<N>::kConverts) {
      Ordered<N>::template store_all<kStores>(to, from);
    } else {
      Words words = N::narrow(from[0]);
#pragma GCC unroll 4
      for (int v = 1; v < kVectors; ++v) words |= N::narrow(from[v]) << (8 * kElement * v);
      store<kStores>(to, words);
    }
  }
};

}  // namespace
}  // namespace vccl
