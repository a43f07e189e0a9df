// Atomic functions. Blocks run on several threads of the host at once, so these are the host's.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "vccl_cuda/worker.h"

namespace vccl_cuda VCCL_CUDA_HIDDEN {

template <class T>
using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t,
                                std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>>;

template <class T>
T from_bits(Bits<T> bits) {
  T value;
  std::memcpy(static_cast<void*>(&value), &bits, sizeof(T));
  return value;
}
template <class T>
Bits<T> to_bits(const T& value) {
  Bits<T> bits;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

// A thread that takes a lock, which another thread of its block holds, has to let that one go on.
inline void note_attempt(bool has_changed) {
  if (has_changed) {
    here.spins = 0;
  } else if (++here.spins >= 64 && here.worker) {
    here.spins = 0;
    here.worker->give_way();
  }
}

// Replaces *address by change(*address), and returns what was there.
template <class T, class Change>
T replace(T* address, const Change& change) {
  auto* const place = reinterpret_cast<Bits<T>*>(address);
  Bits<T> old = __atomic_load_n(place, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(place, &old, to_bits<T>(change(from_bits<T>(old))), true,
                                      __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return from_bits<T>(old);
}

}  // namespace vccl_cuda

#define VCCL_CUDA_INTEGERS(CALL) CALL(int) CALL(unsigned int) CALL(unsigned long long)
#define VCCL_CUDA_ATOMICS(T)                                                                                   \
  inline T atomicAdd(T* address, T value) { return __atomic_fetch_add(address, value, __ATOMIC_RELAXED); }    \
  inline T atomicAnd(T* address, T value) { return __atomic_fetch_and(address, value, __ATOMIC_RELAXED); }    \
  inline T atomicOr(T* address, T value) { return __atomic_fetch_or(address, value, __ATOMIC_RELAXED); }      \
  inline T atomicXor(T* address, T value) { return __atomic_fetch_xor(address, value, __ATOMIC_RELAXED); }
VCCL_CUDA_INTEGERS(VCCL_CUDA_ATOMICS)
#undef VCCL_CUDA_ATOMICS

#define VCCL_CUDA_ATOMICS(T)                                                                                   \
  inline T atomicMin(T* address, T value) {                                                                    \
    return ::vccl_cuda::replace(address, [=](T old) { return value < old ? value : old; });                    \
  }                                                                                                            \
  inline T atomicMax(T* address, T value) {                                                                    \
    return ::vccl_cuda::replace(address, [=](T old) { return old < value ? value : old; });                    \
  }
VCCL_CUDA_INTEGERS(VCCL_CUDA_ATOMICS)
VCCL_CUDA_ATOMICS(long long)
#undef VCCL_CUDA_ATOMICS

inline int atomicSub(int* address, int value) {
  return __atomic_fetch_sub(address, value, __ATOMIC_RELAXED);
}
inline unsigned int atomicSub(unsigned int* address, unsigned int value) {
  return __atomic_fetch_sub(address, value, __ATOMIC_RELAXED);
}
inline float atomicAdd(float* address, float value) {
  return ::vccl_cuda::replace(address, [=](float old) { return old + value; });
}
inline double atomicAdd(double* address, double value) {
  return ::vccl_cuda::replace(address, [=](double old) { return old + value; });
}
inline unsigned int atomicInc(unsigned int* address, unsigned int limit) {
  return ::vccl_cuda::replace(address, [=](unsigned int old) { return old >= limit ? 0u : old + 1; });
}
inline unsigned int atomicDec(unsigned int* address, unsigned int limit) {
  return ::vccl_cuda::replace(address, [=](unsigned int old) { return old == 0 || old > limit ? limit : old - 1; });
}

// These two take and release locks, so what a thread has written before is seen by the next one.
#define VCCL_CUDA_ATOMICS(T)                                                                                   \
  inline T atomicExch(T* address, T value) {                                                                   \
    const auto bits = ::vccl_cuda::to_bits<T>(value);                                                          \
    auto* const place = reinterpret_cast<::vccl_cuda::Bits<T>*>(address);                                      \
    const auto old = __atomic_exchange_n(place, bits, __ATOMIC_SEQ_CST);                                       \
    ::vccl_cuda::note_attempt(old != bits);                                                                    \
    return ::vccl_cuda::from_bits<T>(old);                                                                     \
  }
VCCL_CUDA_INTEGERS(VCCL_CUDA_ATOMICS)
VCCL_CUDA_ATOMICS(float)
#undef VCCL_CUDA_ATOMICS
#define VCCL_CUDA_ATOMICS(T)                                                                                   \
  inline T atomicCAS(T* address, T expected, T value) {                                                        \
    T old = expected;                                                                                          \
    ::vccl_cuda::note_attempt(                                                                                 \
        __atomic_compare_exchange_n(address, &old, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));         \
    return old;                                                                                                \
  }
VCCL_CUDA_INTEGERS(VCCL_CUDA_ATOMICS)
VCCL_CUDA_ATOMICS(unsigned short)
#undef VCCL_CUDA_ATOMICS
#undef VCCL_CUDA_INTEGERS

// The forms for a block or for all cards have the same effect, but for their promises about the order.
#define VCCL_CUDA_SCOPES(name)                                                                                 \
  template <class T, class... Values>                                                                          \
  T name##_block(T* address, Values... values) {                                                               \
    return name(address, static_cast<T>(values)...);                                                           \
  }                                                                                                            \
  template <class T, class... Values>                                                                          \
  T name##_system(T* address, Values... values) {                                                              \
    return name(address, static_cast<T>(values)...);                                                           \
  }
VCCL_CUDA_SCOPES(atomicAdd)
VCCL_CUDA_SCOPES(atomicMin)
VCCL_CUDA_SCOPES(atomicMax)
VCCL_CUDA_SCOPES(atomicExch)
VCCL_CUDA_SCOPES(atomicCAS)
VCCL_CUDA_SCOPES(atomicOr)
VCCL_CUDA_SCOPES(atomicAnd)
#undef VCCL_CUDA_SCOPES
