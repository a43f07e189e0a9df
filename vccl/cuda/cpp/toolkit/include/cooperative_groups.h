// Groups of the threads of a block. Groups of several blocks are not there: they need a barrier of the grid.
#pragma once

#include "cuda_runtime.h"

#ifdef __CUDACC__
namespace cooperative_groups {

class thread_block {
 public:
  void sync(VCCL_CUDA_SITE) const { __syncthreads(vccl_site); }
  static unsigned thread_rank() { return ::vccl_cuda::here.worker->rank(); }
  static unsigned num_threads() { return blockDim.x * blockDim.y * blockDim.z; }
  static unsigned size() { return num_threads(); }
  static dim3 group_index() { return blockIdx; }
  static dim3 thread_index() { return threadIdx; }
  static dim3 group_dim() { return blockDim; }
  static dim3 dim_threads() { return blockDim; }
};
inline thread_block this_thread_block() {
  return {};
}

// Some lanes of a warp, in the order of their numbers.
class lanes {
 public:
  explicit lanes(unsigned mask) : mask_(mask) {}

  void sync(VCCL_CUDA_SITE) const { __syncwarp(mask_, vccl_site); }
  unsigned thread_rank() const { return __popc(mask_ & ((1u << ::vccl_cuda::lane()) - 1)); }
  unsigned num_threads() const { return __popc(mask_); }
  unsigned size() const { return num_threads(); }
  template <class T>
  T shfl(T value, int rank, VCCL_CUDA_SITE) const {
    return __shfl_sync(mask_, value, lane_of(rank), 32, vccl_site);
  }
  template <class T>
  T shfl_down(T value, unsigned delta, VCCL_CUDA_SITE) const {
    return shfl(value, inside(static_cast<int>(thread_rank() + delta)), vccl_site);
  }
  template <class T>
  T shfl_up(T value, unsigned delta, VCCL_CUDA_SITE) const {
    return shfl(value, inside(static_cast<int>(thread_rank()) - static_cast<int>(delta)), vccl_site);
  }
  template <class T>
  T shfl_xor(T value, unsigned mask, VCCL_CUDA_SITE) const {
    return shfl(value, inside(static_cast<int>(thread_rank() ^ mask)), vccl_site);
  }
  int any(int predicate, VCCL_CUDA_SITE) const { return __any_sync(mask_, predicate, vccl_site); }
  int all(int predicate, VCCL_CUDA_SITE) const { return __all_sync(mask_, predicate, vccl_site); }
  unsigned ballot(int predicate, VCCL_CUDA_SITE) const {
    const unsigned of_warp = __ballot_sync(mask_, predicate, vccl_site);
    unsigned result = 0;
    for (unsigned rank = 0; rank < num_threads(); ++rank) result |= (of_warp >> lane_of(rank) & 1u) << rank;
    return result;
  }
  unsigned mask() const { return mask_; }

 private:
  int inside(int rank) const {
    return rank >= 0 && rank < static_cast<int>(num_threads()) ? rank : static_cast<int>(thread_rank());
  }
  int lane_of(int rank) const {
    unsigned rest = mask_;
    for (; rank > 0; --rank) rest &= rest - 1;
    return __ffs(static_cast<int>(rest)) - 1;
  }
  unsigned mask_;
};

template <unsigned kSize, class Parent = thread_block>
class thread_block_tile : public lanes {
 public:
  static_assert(kSize >= 1 && kSize <= 32 && (kSize & (kSize - 1)) == 0,
                "a tile has 1, 2, 4, 8, 16 or 32 threads on cards");
  thread_block_tile() : lanes(mask_of_caller()) {}
  static constexpr unsigned num_threads() { return kSize; }
  static constexpr unsigned size() { return kSize; }
  static unsigned thread_rank() { return ::vccl_cuda::lane() % kSize; }
  static unsigned meta_group_size() { return (thread_block::num_threads() + kSize - 1) / kSize; }
  static unsigned meta_group_rank() { return thread_block::thread_rank() / kSize; }

 private:
  static unsigned mask_of_caller() {
    const unsigned lane = ::vccl_cuda::lane();
    return kSize == 32 ? 0xffffffffu : ((1u << kSize % 32) - 1) << (lane / kSize * kSize);
  }
};
template <unsigned kSize, class Parent>
thread_block_tile<kSize, Parent> tiled_partition(const Parent&) {
  return {};
}

using coalesced_group = lanes;
inline coalesced_group coalesced_threads(VCCL_CUDA_SITE) {
  return coalesced_group(__activemask(vccl_site));
}
template <class Group>
void sync(const Group& group, VCCL_CUDA_SITE) {
  group.sync(vccl_site);
}

template <class T>
struct plus {
  T operator()(T a, T b) const { return a + b; }
};
template <class T>
struct less {
  T operator()(T a, T b) const { return b < a ? b : a; }
};
template <class T>
struct greater {
  T operator()(T a, T b) const { return a < b ? b : a; }
};
// All lanes get the result, which is the same whatever the order in which they come.
template <class T, class Op>
T reduce(const lanes& group, T value, Op op, VCCL_CUDA_SITE) {
  return ::vccl_cuda::combine("cooperative_groups::reduce", group.mask(), value, op, vccl_site);
}

}  // namespace cooperative_groups
#endif
