#include "csrc_pg/collectives/reduce_op.hpp"

namespace vccl {

const char* to_string(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::sum:
      return "SUM";
    case ReduceOp::avg:
      return "AVG";
    case ReduceOp::product:
      return "PRODUCT";
    case ReduceOp::min:
      return "MIN";
    case ReduceOp::max:
      return "MAX";
    case ReduceOp::band:
      return "BAND";
    case ReduceOp::bor:
      return "BOR";
    case ReduceOp::bxor:
      return "BXOR";
    case ReduceOp::premul_sum:
      return "PREMUL_SUM";
  }
  return "unknown reduction";
}

const char* why_no_reduction(Dtype dtype, ReduceOp op) noexcept {
  const bool is_bitwise = op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor;
  constexpr const char* kNotBitwise = "bitwise reductions are for integers and bool";
  switch (kind_of(dtype)) {
    case DtypeKind::boolean:
      if (op != ReduceOp::avg && op != ReduceOp::premul_sum) return nullptr;
      return "reduce with MAX (any) or MIN (all), or convert to a number first";
    case DtypeKind::integer:
      if (op != ReduceOp::premul_sum) return nullptr;
      return "the factor is no whole number; multiply first and use SUM";
    case DtypeKind::floating:
    case DtypeKind::narrow_float:
      return is_bitwise ? kNotBitwise : nullptr;
    case DtypeKind::complex:
      if (op == ReduceOp::min || op == ReduceOp::max) return "complex numbers have no order";
      return is_bitwise ? kNotBitwise : nullptr;
    case DtypeKind::opaque:
      break;
  }
  return "they can be moved; convert to another dtype to reduce them";
}

}  // namespace vccl
