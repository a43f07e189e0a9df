// The methods of c10d that this backend does not support, one line each, so that the error names the
// operation.
#include "base/text.hpp"
#include "csrc_pg/process_group/process_group.hpp"

namespace vccl {
namespace {

[[noreturn]] void unsupported(const char* operation) {
  C10_THROW_ERROR(NotImplementedError, base::text("Backend vccl does not support ", operation));
}

}  // namespace

using PG = ProcessGroupVccl;

void PG::monitoredBarrier(const c10d::BarrierOptions&, bool) {
  unsupported("monitored_barrier");
}
void PG::suspend() {
  unsupported("suspend");
}
void PG::resume() {
  unsupported("resume");
}
std::unordered_map<std::string, std::uint64_t> PG::getMemoryStats() {
  unsupported("memory statistics of the group");
}

}  // namespace vccl
