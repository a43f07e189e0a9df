// Which of the compiled loops run.
#include "csrc_pg/collectives/reduce_kernels.hpp"

namespace vccl {

const Reduction* find_portable_reduction(Dtype dtype, ReduceOp op) noexcept;  // reduce_portable.cpp
#if defined(__x86_64__)
const Reduction* find_avx2_reduction(Dtype dtype, ReduceOp op) noexcept;    // reduce_avx2.cpp
const Reduction* find_avx512_reduction(Dtype dtype, ReduceOp op) noexcept;  // reduce_avx512.cpp
#endif

namespace {

struct Found {
  InstructionSet sets[3];
  std::size_t size = 0;

  // A choice at run time rather than target_clones: those are resolved by the loader, before a sanitizer's
  // runtime is ready, and cannot be tested against one another.
  Found() {
#if defined(__x86_64__)
    // True only if the system, too, saves the registers.
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
      sets[size++] = {"avx512", find_avx512_reduction};
    if (avx2) sets[size++] = {"avx2", find_avx2_reduction};
#endif
    sets[size++] = {"portable", find_portable_reduction};
  }
};

const Found& found() {
  static const Found sets;
  return sets;
}

}  // namespace

std::span<const InstructionSet> instruction_sets() noexcept {
  return {found().sets, found().size};
}

const Reduction* find_reduction(Dtype dtype, ReduceOp op) noexcept {
  return found().sets[0].find(dtype, op);
}

}  // namespace vccl
