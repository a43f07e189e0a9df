// The reductions (SUM, MAX ...), and the dtypes for which each has a meaning.
#pragma once

#include <cstdint>

#include "csrc_pg/collectives/dtype.hpp"

namespace vccl {

/// The numbers travel in signatures.
enum class ReduceOp : std::uint8_t { sum, avg, product, min, max, band, bor, bxor, premul_sum };

/// Returns torch's name: "SUM".
const char* to_string(ReduceOp) noexcept;

/// Returns null if elements of the dtype can be reduced with `op`, else what to do instead, for an error.
const char* why_no_reduction(Dtype dtype, ReduceOp op) noexcept;

}  // namespace vccl
