// How elements lie in memory and in vectors, for reduce_loops.hpp, which says how it is included.
//
// Needs before it kVectorBytes, and a struct Machine. Its load() and pack(), where it has some, convert
// floats of 16 or 8 bits with the machine's instructions; those called `shuffled` may spread the elements
// over the vectors in an order of their own, which the other one undoes. Its stream(), where it has one,
// stores a vector past the caches.

namespace vccl {
namespace {

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(kVectorBytes)));
};
template <class T>
using Vector = typename VectorOf<T>::type;

template <class V>
constexpr int kLanes = sizeof(V) / sizeof(V{}[0]);

// Peers' blocks lie where the peers' tensors lie: no alignment is assumed, and on x86 none is paid for.
template <class V>
VCCL_INLINE V load(const std::byte* from) {
  V value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

template <Stores kStores = Stores::plain, class M = Machine, class V>
VCCL_INLINE void store(std::byte* to, V value) {
  if constexpr (kStores == Stores::past_caches)
    M::stream(to, value);
  else
    __builtin_memcpy(to, &value, sizeof value);
}

// A format has elements of kElement bytes, of which load_all() and store_all() move kVectors vectors of Lane
// at once, load_one() and store_one() a single one. Up to kFew left over are quicker one by one. Where it has
// kStreams, store_all() can store past the caches.

/// Elements that are computed with as they are. T is unsigned where signs do not matter.
template <class T>
struct Plain {
  using Lane = T;
  static constexpr int kElement = sizeof(T), kVectors = 1, kFew = 8;
  static constexpr bool kStreams = true;
  static VCCL_INLINE T load_one(const std::byte* from) { return load<T>(from); }
  static VCCL_INLINE void store_one(std::byte* to, T value) { store(to, value); }
  static VCCL_INLINE void load_all(const std::byte* from, Vector<T>* to) { *to = load<Vector<T>>(from); }
  template <Stores kStores>
  static VCCL_INLINE void store_all(std::byte* to, const Vector<T>* from) {
    store<kStores>(to, *from);
  }
};

/// Partial results of floats of `kSize` bytes.
template <int kSize>
struct Partial {
  using Lane = float;
  static constexpr int kElement = sizeof(float), kVectors = sizeof(float) / kSize, kFew = 4;
  static constexpr bool kStreams = false;
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

template <class N>
struct Narrow {
  using Lane = float;
  static constexpr int kElement = sizeof(typename N::Bits), kVectors = sizeof(float) / kElement, kFew = 4;
  static VCCL_INLINE float load_one(const std::byte* from) {
    return to_float<N>(load<typename N::Bits>(from));
  }
  static VCCL_INLINE void store_one(std::byte* to, float value) { store(to, from_float<N>(value)); }
};

/// Floats N of 16 or 8 bits, in their order: beside Partial.
template <class N, class M = Machine>
struct Ordered : Narrow<N> {
  using Narrow<N>::kElement, Narrow<N>::kVectors;
  static constexpr bool kStreams = false;

  using Floats = Vector<float>;
  using Words = Vector<std::uint32_t>;
  static constexpr int kPart = kVectorBytes / kVectors;  // bytes of the elements of one vector
  typedef typename N::Bits Part __attribute__((vector_size(kPart)));

  static VCCL_INLINE void load_all(const std::byte* from, Floats* to) {
    if constexpr (requires { M::load(N(), from, to); }) {
      M::load(N(), from, to);
    } else {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        to[v] = N::widen(__builtin_convertvector(load<Part>(from + v * kPart), Words) << (32 - 8 * kElement));
    }
  }
  template <Stores>
  static VCCL_INLINE void store_all(std::byte* to, const Floats* from) {
    if constexpr (requires { M::pack(N(), from); }) {
      store(to, M::pack(N(), from));
    } else {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        store(to + v * kPart, __builtin_convertvector(N::narrow(from[v]), Part));
    }
  }
};

/// Floats N of 16 or 8 bits, in whatever order is quickest: the element at the lower end of every 32 bits in
/// the first vector, and so on.
template <class N, class M = Machine>
struct Shuffled : Narrow<N> {
  using Narrow<N>::kElement, Narrow<N>::kVectors;
  static constexpr bool kStreams = true;

  using Floats = Vector<float>;
  using Words = Vector<std::uint32_t>;

  static VCCL_INLINE void load_all(const std::byte* from, Floats* to) {
    if constexpr (requires { M::load_shuffled(N(), from, to); }) {
      M::load_shuffled(N(), from, to);
    } else if constexpr (requires { M::load(N(), from, to); }) {
      M::load(N(), from, to);
    } else {
      const Words words = load<Words>(from);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) to[v] = N::widen(Words(words << (32 - 8 * kElement * (v + 1))));
    }
  }
  template <Stores kStores>
  static VCCL_INLINE void store_all(std::byte* to, const Floats* from) {
    if constexpr (requires { M::pack_shuffled(N(), from); }) {
      store<kStores>(to, M::pack_shuffled(N(), from));
    } else if constexpr (requires { M::pack(N(), from); }) {
      store<kStores>(to, M::pack(N(), from));
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
