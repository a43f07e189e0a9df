#include "transport/shared/control_memory.hpp"

#include <algorithm>
#include <cstring>

#include "transport/support/error_text.hpp"

namespace vccl {

void LeaveReason::write(const std::string& reason) noexcept {
  const std::string_view kept = cut_text(reason, kMaxText);
  std::memcpy(text, kept.data(), kept.size());
  length = static_cast<std::uint32_t>(kept.size());
}

std::string LeaveReason::read() const {
  return valid_text({text, std::min<std::size_t>(length, kMaxText)});
}

}  // namespace vccl
