// Barriers of a block, and functions of a warp.
#pragma once

#include <cstring>
#include <type_traits>

#include "vccl_cuda/worker.h"

inline void __syncthreads(VCCL_CUDA_SITE) {
  ::vccl_cuda::here.worker->barrier(::vccl_cuda::Combined::kCount, 0, vccl_site);
}
inline int __syncthreads_count(int predicate, VCCL_CUDA_SITE) {
  return ::vccl_cuda::here.worker->barrier(::vccl_cuda::Combined::kCount, predicate, vccl_site);
}
inline int __syncthreads_and(int predicate, VCCL_CUDA_SITE) {
  return ::vccl_cuda::here.worker->barrier(::vccl_cuda::Combined::kAnd, predicate, vccl_site);
}
inline int __syncthreads_or(int predicate, VCCL_CUDA_SITE) {
  return ::vccl_cuda::here.worker->barrier(::vccl_cuda::Combined::kOr, predicate, vccl_site);
}

// Threads of other blocks run on other threads of the host. Those of the same block take turns, so a fence is
// also the place where one that waits for another lets it go on.
inline void __threadfence() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  ::vccl_cuda::here.worker->give_way();
}
inline void __threadfence_block() {
  __threadfence();
}
inline void __threadfence_system() {
  __threadfence();
}
inline void __nanosleep(unsigned) {
  ::vccl_cuda::here.worker->give_way();
}

namespace vccl_cuda VCCL_CUDA_HIDDEN {

inline unsigned lane() {
  return here.worker->rank() % 32;
}

template <class T>
Exchange exchange_of(WarpCall call, const char* name, unsigned mask, const T& value) {
  static_assert(std::is_trivially_copyable<T>::value && sizeof(T) <= sizeof(Value),
                "functions of a warp take values of at most 16 bytes");
  Exchange mine;
  mine.call = call;
  mine.name = name;
  mine.mask = mask;
  std::memcpy(mine.value.bytes, &value, sizeof(T));
  return mine;
}

template <class T>
T given(const Exchange& exchange) {
  T value;
  std::memcpy(static_cast<void*>(&value), exchange.value.bytes, sizeof(T));
  return value;
}

// Returns what lane `source` gives. A lane outside of the caller's section reads its own value.
template <class T>
T read_lane(const char* name, unsigned mask, T value, int source, Site site) {
  Exchange mine = exchange_of(WarpCall::kRead, name, mask, value);
  mine.source = source;
  here.worker->exchange(mine, site);
  if constexpr (std::is_same_v<T, bool>)
    return mine.value.bytes[0] != 0;  // a bool has no other bits than 0 and 1
  else
    return given<T>(mine);
}

inline int section(int width) {
  return static_cast<int>(lane()) & ~(width - 1);
}

inline unsigned ballot(const char* name, unsigned mask, int predicate, Site site) {
  Exchange mine = exchange_of(WarpCall::kBallot, name, mask, 0);
  mine.result = predicate != 0;
  here.worker->exchange(mine, site);
  return mine.result;
}

template <class T, class Op>
T combine(const char* name, unsigned mask, T value, Op, Site site) {
  Exchange mine = exchange_of(WarpCall::kCombine, name, mask, value);
  mine.combine = [](Value& into, const Value& other) {
    T a, b;
    std::memcpy(&a, into.bytes, sizeof(T));
    std::memcpy(&b, other.bytes, sizeof(T));
    a = Op()(a, b);
    std::memcpy(into.bytes, &a, sizeof(T));
  };
  here.worker->exchange(mine, site);
  return given<T>(mine);
}

struct Add {
  template <class T>
  T operator()(T a, T b) const {
    return a + b;
  }
};
struct Min {
  template <class T>
  T operator()(T a, T b) const {
    return b < a ? b : a;
  }
};
struct Max {
  template <class T>
  T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};
struct And {
  unsigned operator()(unsigned a, unsigned b) const { return a & b; }
};
struct Or {
  unsigned operator()(unsigned a, unsigned b) const { return a | b; }
};
struct Xor {
  unsigned operator()(unsigned a, unsigned b) const { return a ^ b; }
};

}  // namespace vccl_cuda

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, VCCL_CUDA_SITE) {
  const int from = ::vccl_cuda::section(width) + (source & (width - 1));
  return ::vccl_cuda::read_lane("__shfl_sync", mask, value, from, vccl_site);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, VCCL_CUDA_SITE) {
  const int self = static_cast<int>(::vccl_cuda::lane());
  const int from = self - static_cast<int>(delta);
  return ::vccl_cuda::read_lane("__shfl_up_sync", mask, value, from < ::vccl_cuda::section(width) ? self : from,
                                vccl_site);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, VCCL_CUDA_SITE) {
  const int self = static_cast<int>(::vccl_cuda::lane());
  const int from = self + static_cast<int>(delta);
  const bool is_inside = from < ::vccl_cuda::section(width) + width;
  return ::vccl_cuda::read_lane("__shfl_down_sync", mask, value, is_inside ? from : self, vccl_site);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, VCCL_CUDA_SITE) {
  const int self = static_cast<int>(::vccl_cuda::lane());
  const int from = self ^ lane_mask;
  const bool is_inside = from < ::vccl_cuda::section(width) + width;
  return ::vccl_cuda::read_lane("__shfl_xor_sync", mask, value, is_inside ? from : self, vccl_site);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, VCCL_CUDA_SITE) {
  return ::vccl_cuda::ballot("__ballot_sync", mask, predicate, vccl_site);
}
inline int __any_sync(unsigned mask, int predicate, VCCL_CUDA_SITE) {
  return ::vccl_cuda::ballot("__any_sync", mask, predicate, vccl_site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, VCCL_CUDA_SITE) {
  return ::vccl_cuda::ballot("__all_sync", mask, predicate == 0, vccl_site) == 0;
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value, VCCL_CUDA_SITE) {
  auto mine = ::vccl_cuda::exchange_of(::vccl_cuda::WarpCall::kMatch, "__match_any_sync", mask, value);
  ::vccl_cuda::here.worker->exchange(mine, vccl_site);
  return mine.result;
}
inline void __syncwarp(unsigned mask = ::vccl_cuda::kAllLanes, VCCL_CUDA_SITE) {
  auto mine = ::vccl_cuda::exchange_of(::vccl_cuda::WarpCall::kSync, "__syncwarp", mask, 0);
  ::vccl_cuda::here.worker->exchange(mine, vccl_site);
}
inline unsigned __activemask(VCCL_CUDA_SITE) {
  return ::vccl_cuda::here.worker->active_lanes(vccl_site);
}

#define VCCL_CUDA_REDUCE(name, Op, T)                                                        \
  inline T name(unsigned mask, T value, VCCL_CUDA_SITE) {                                    \
    return ::vccl_cuda::combine(#name, mask, value, ::vccl_cuda::Op(), vccl_site);           \
  }
VCCL_CUDA_REDUCE(__reduce_add_sync, Add, unsigned)
VCCL_CUDA_REDUCE(__reduce_add_sync, Add, int)
VCCL_CUDA_REDUCE(__reduce_min_sync, Min, unsigned)
VCCL_CUDA_REDUCE(__reduce_min_sync, Min, int)
VCCL_CUDA_REDUCE(__reduce_max_sync, Max, unsigned)
VCCL_CUDA_REDUCE(__reduce_max_sync, Max, int)
VCCL_CUDA_REDUCE(__reduce_and_sync, And, unsigned)
VCCL_CUDA_REDUCE(__reduce_or_sync, Or, unsigned)
VCCL_CUDA_REDUCE(__reduce_xor_sync, Xor, unsigned)
#undef VCCL_CUDA_REDUCE
