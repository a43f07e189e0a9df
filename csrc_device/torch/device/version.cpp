#include "include/vccl/version.hpp"

namespace vccl {

int version() noexcept {
  return VCCL_VERSION_CODE;
}

}  // namespace vccl
