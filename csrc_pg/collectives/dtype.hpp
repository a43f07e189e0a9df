// The element types that collectives move and reduce.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vccl {

/// The one table of dtypes. Its columns are the enumerator of Dtype, torch's name, the enumerator of
/// c10::ScalarType (for csrc_pg/arguments/torch_types.cpp), the bytes of an element, the kind, and the type
/// by which kernels/loops.hpp computes with an element, or with a part of a complex element.
///
/// The order gives the numbers that travel in signatures.
#define VCCL_DTYPES(X)                                                          \
  X(boolean, "bool", Bool, 1, boolean, std::uint8_t)                            \
  X(int8, "int8", Char, 1, integer, std::int8_t)                                \
  X(int16, "int16", Short, 2, integer, std::int16_t)                            \
  X(int32, "int32", Int, 4, integer, std::int32_t)                              \
  X(int64, "int64", Long, 8, integer, std::int64_t)                             \
  X(uint8, "uint8", Byte, 1, integer, std::uint8_t)                             \
  X(uint16, "uint16", UInt16, 2, integer, std::uint16_t)                        \
  X(uint32, "uint32", UInt32, 4, integer, std::uint32_t)                        \
  X(uint64, "uint64", UInt64, 8, integer, std::uint64_t)                        \
  X(float16, "float16", Half, 2, narrow_float, Float16)                         \
  X(bfloat16, "bfloat16", BFloat16, 2, narrow_float, Bfloat16)                  \
  X(float32, "float32", Float, 4, floating, float)                              \
  X(float64, "float64", Double, 8, floating, double)                            \
  X(float8_e4m3fn, "float8_e4m3fn", Float8_e4m3fn, 1, narrow_float, Float8E4M3) \
  X(float8_e5m2, "float8_e5m2", Float8_e5m2, 1, narrow_float, Float8E5M2)       \
  X(float8_e4m3fnuz, "float8_e4m3fnuz", Float8_e4m3fnuz, 1, opaque, void)       \
  X(float8_e5m2fnuz, "float8_e5m2fnuz", Float8_e5m2fnuz, 1, opaque, void)       \
  X(float8_e8m0fnu, "float8_e8m0fnu", Float8_e8m0fnu, 1, opaque, void)          \
  X(complex64, "complex64", ComplexFloat, 8, complex, float)                    \
  X(complex128, "complex128", ComplexDouble, 16, complex, double)

#define VCCL_ENUMERATOR(dtype, name, torch, bytes, kind, Number) dtype,
enum class Dtype : std::uint8_t { VCCL_DTYPES(VCCL_ENUMERATOR) };
#undef VCCL_ENUMERATOR

/// Says how elements are computed with, and so which reductions have a meaning for them (reduce_op.hpp).
enum class DtypeKind : std::uint8_t {
  boolean,       // an element is 0 or 1
  integer,       // sums and products wrap
  floating,      // elements are added up as they are
  narrow_float,  // elements are added up in float32 and rounded once, at the end
  complex,       // a real and an imaginary part, which are added up as they are
  opaque,        // elements can be moved, not reduced
};

#define VCCL_ENUMERATOR(dtype, name, torch, bytes, kind, Number) Dtype::dtype,
inline constexpr Dtype kDtypes[] = {VCCL_DTYPES(VCCL_ENUMERATOR)};
#undef VCCL_ENUMERATOR

/// Returns torch's name: "float32", "bool".
const char* to_string(Dtype) noexcept;
/// Returns the bytes of an element, and 0 for a number that is no dtype.
std::size_t size_of(Dtype) noexcept;
DtypeKind kind_of(Dtype) noexcept;

}  // namespace vccl
