#include "transport/support/log.hpp"

#include <cstdio>

#include "base/text.hpp"

namespace vccl {

Log::Log(LogLevel level, std::uint64_t rank, const std::string& group)
    : level_(level), prefix_(base::text("[vccl] rank ", rank, " (", group, "): ")) {}

void Log::write(LogLevel level, const std::string& text) const noexcept {
  if (level > level_) return;
  // This is one call, so that lines of several ranks on one terminal do not mix.
  std::fprintf(stderr, "%s%s\n", prefix_.c_str(), text.c_str());
}

}  // namespace vccl
