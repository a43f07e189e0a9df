#include "csrc_pg/collectives/dtype.hpp"

#include <iterator>

namespace vccl {

namespace {

struct Row {
  const char* name;
  std::size_t size;
  DtypeKind kind;
};
#define VCCL_ROW(dtype, name, torch, bytes, kind, Number) {name, bytes, DtypeKind::kind},
constexpr Row kRows[] = {VCCL_DTYPES(VCCL_ROW)};
#undef VCCL_ROW

// A number that came from a peer may be none of the dtypes.
constexpr Row kUnknown = {"unknown dtype", 0, DtypeKind::opaque};

const Row& row_of(Dtype dtype) noexcept {
  const auto number = static_cast<std::size_t>(dtype);
  return number < std::size(kRows) ? kRows[number] : kUnknown;
}

}  // namespace

const char* to_string(Dtype dtype) noexcept {
  return row_of(dtype).name;
}

std::size_t size_of(Dtype dtype) noexcept {
  return row_of(dtype).size;
}

DtypeKind kind_of(Dtype dtype) noexcept {
  return row_of(dtype).kind;
}

}  // namespace vccl
