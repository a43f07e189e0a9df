#include "transport/interruption_check.hpp"

#include <atomic>

#include "base/text.hpp"
#include "transport/error.hpp"

namespace vccl {
namespace {

std::atomic<InterruptionCheck> current_check{nullptr};

}  // namespace

void set_interruption_check(InterruptionCheck check) noexcept {
  current_check.store(check);
}

std::string interruption() {
  const auto check = current_check.load();
  return check ? check() : std::string();
}

void throw_if_interrupted(const std::string& what) {
  if (const std::string name = interruption(); !name.empty())
    throw Error(ErrorCode::aborted, base::text("interrupted by ", name, " while ", what));
}

}  // namespace vccl
