#include "transport/host/given_up.hpp"

#include "transport/shared/flags.hpp"
#include "transport/shared/taken_back.hpp"

namespace vccl {

// The phases are other ranks' cache lines, and are read after a failure only.
void check_given_up(const Group& group, const CurrentOperation& operation, const FailureChannel& failures) {
  if (!failures.happened()) return;
  const std::uint64_t withdrawn = operation.sequence() << RankLine::kPhaseBits | RankLine::kWithdrawn;
  for (int i = 0; i < static_cast<int>(group.host.ranks.size()); ++i)
    if (read(group.host.line(i).phase) == withdrawn) failures.check();
}

void check_reads(const Group& group, const CurrentOperation& operation, const FailureChannel& failures) {
  finish_reads();
  check_given_up(group, operation, failures);
}

}  // namespace vccl
