#include "csrc_pg/collectives/types.hpp"

#include <cstdio>

namespace vccl {

const char* to_string(Collective collective) noexcept {
  switch (collective) {
    case Collective::all_reduce:
      return "all_reduce";
    case Collective::broadcast:
      return "broadcast";
    case Collective::all_gather:
      return "all_gather";
    case Collective::reduce_scatter:
      return "reduce_scatter";
    case Collective::reduce:
      return "reduce";
    case Collective::gather:
      return "gather";
    case Collective::scatter:
      return "scatter";
    case Collective::all_to_all:
      return "all_to_all";
    case Collective::barrier:
      return "barrier";
    case Collective::message:
      return "message";
  }
  return "unknown collective";
}

const char* to_string(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::boolean:
      return "bool";
    case Dtype::int8:
      return "int8";
    case Dtype::int16:
      return "int16";
    case Dtype::int32:
      return "int32";
    case Dtype::int64:
      return "int64";
    case Dtype::uint8:
      return "uint8";
    case Dtype::uint16:
      return "uint16";
    case Dtype::uint32:
      return "uint32";
    case Dtype::uint64:
      return "uint64";
    case Dtype::float16:
      return "float16";
    case Dtype::bfloat16:
      return "bfloat16";
    case Dtype::float32:
      return "float32";
    case Dtype::float64:
      return "float64";
    case Dtype::float8_e4m3fn:
      return "float8_e4m3fn";
    case Dtype::float8_e5m2:
      return "float8_e5m2";
    case Dtype::float8_e4m3fnuz:
      return "float8_e4m3fnuz";
    case Dtype::float8_e5m2fnuz:
      return "float8_e5m2fnuz";
    case Dtype::float8_e8m0fnu:
      return "float8_e8m0fnu";
    case Dtype::complex64:
      return "complex64";
    case Dtype::complex128:
      return "complex128";
  }
  return "unknown dtype";
}

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

std::size_t size_of(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::boolean:
    case Dtype::int8:
    case Dtype::uint8:
    case Dtype::float8_e4m3fn:
    case Dtype::float8_e5m2:
    case Dtype::float8_e4m3fnuz:
    case Dtype::float8_e5m2fnuz:
    case Dtype::float8_e8m0fnu:
      return 1;
    case Dtype::int16:
    case Dtype::uint16:
    case Dtype::float16:
    case Dtype::bfloat16:
      return 2;
    case Dtype::int32:
    case Dtype::uint32:
    case Dtype::float32:
      return 4;
    case Dtype::int64:
    case Dtype::uint64:
    case Dtype::float64:
    case Dtype::complex64:
      return 8;
    case Dtype::complex128:
      return 16;
  }
  return 0;
}

bool is_reduction(Collective collective) noexcept {
  return collective == Collective::all_reduce || collective == Collective::reduce_scatter ||
         collective == Collective::reduce;
}

bool has_root(Collective collective) noexcept {
  return collective == Collective::broadcast || collective == Collective::reduce ||
         collective == Collective::gather || collective == Collective::scatter;
}

namespace {

// Uneven parts show in the signature as a number only, which two ranks can compare by eye.
std::string text_of_elements(const Signature& signature) {
  if (static_cast<Collective>(signature.collective) == Collective::all_to_all && signature.extra != 0)
    return "with splits";
  std::string text = std::to_string(signature.count) + (signature.count == 1 ? " element" : " elements");
  if (signature.extra == 0) return text;
  char hash[20];
  std::snprintf(hash, sizeof hash, "%08x", static_cast<unsigned>(signature.extra ^ signature.extra >> 32));
  return text + " in uneven parts #" + hash;
}

}  // namespace

std::string describe(const Signature& signature) {
  const auto collective = static_cast<Collective>(signature.collective);
  std::string text = to_string(collective);
  if (collective == Collective::barrier) return text + "()";
  text +=
      std::string("(") + to_string(static_cast<Dtype>(signature.dtype)) + ", " + text_of_elements(signature);
  if (is_reduction(collective)) text += std::string(", ") + to_string(static_cast<ReduceOp>(signature.op));
  if (has_root(collective)) text += ", root " + std::to_string(signature.root);
  return text + ")";
}

}  // namespace vccl
