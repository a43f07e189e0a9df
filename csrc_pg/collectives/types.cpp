#include "csrc_pg/collectives/types.hpp"

namespace vccl {

const char* to_string(Collective collective) noexcept {
  switch (collective) {
    case Collective::all_reduce:
      return "all_reduce";
    case Collective::broadcast:
      return "broadcast";
    case Collective::all_gather:
      return "all_gather";
    case Collective::barrier:
      return "barrier";
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
  }
  return "unknown reduction";
}

std::size_t size_of(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::boolean:
    case Dtype::int8:
    case Dtype::uint8:
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
      return 8;
  }
  return 0;
}

std::string describe(const Signature& signature) {
  const auto collective = static_cast<Collective>(signature.collective);
  std::string text = to_string(collective);
  if (collective == Collective::barrier) return text + "()";
  text += std::string("(") + to_string(static_cast<Dtype>(signature.dtype)) + ", " +
          std::to_string(signature.count) + (signature.count == 1 ? " element" : " elements");
  if (collective == Collective::all_reduce)
    text += std::string(", ") + to_string(static_cast<ReduceOp>(signature.op));
  if (collective == Collective::broadcast) text += ", root " + std::to_string(signature.root);
  return text + ")";
}

}  // namespace vccl
