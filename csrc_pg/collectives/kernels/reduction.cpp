// Chooses which of the compiled loops run.
#include "csrc_pg/collectives/kernels/reduction.hpp"

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace vccl {

const Reduction* find_portable_reduction(Dtype dtype, ReduceOp op) noexcept;  // portable.cpp
#if defined(__x86_64__)
const Reduction* find_avx2_reduction(Dtype dtype, ReduceOp op) noexcept;    // avx2.cpp
const Reduction* find_avx512_reduction(Dtype dtype, ReduceOp op) noexcept;  // avx512.cpp
#elif defined(__aarch64__)
const Reduction* find_neon_reduction(Dtype dtype, ReduceOp op) noexcept;           // neon.cpp
const Reduction* find_neon_bfloat16_reduction(Dtype dtype, ReduceOp op) noexcept;  // neon_bfloat16.cpp
#endif

namespace {

struct Found {
  InstructionSet sets[3];
  std::size_t size = 0;

  // The choice is made at run time rather than by target_clones. The loader resolves those before a
  // sanitizer's runtime is ready, and they cannot be tested against one another.
  Found() {
#if defined(__x86_64__)
    // This is true only if the system, too, saves the registers.
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
      sets[size++] = {"avx512", find_avx512_reduction};
    if (avx2) sets[size++] = {"avx2", find_avx2_reduction};
#elif defined(__aarch64__)
    constexpr unsigned long kBfloat16 = 1UL << 14;  // HWCAP2_BF16, which older headers of the system lack
    if (::getauxval(AT_HWCAP2) & kBfloat16) sets[size++] = {"neon_bfloat16", find_neon_bfloat16_reduction};
    sets[size++] = {"neon", find_neon_reduction};
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
