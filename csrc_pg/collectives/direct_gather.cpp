// Direct gather: each rank writes its own part into the root's output.
#include "csrc_pg/collectives/direct.hpp"
#include "csrc_pg/collectives/direct_copy.hpp"

namespace vccl {

void direct_gather(Communicator& communicator, const Call& call) {
  Direct direct(communicator, call);
  const std::size_t part = call.count * direct.element();
  std::byte* const place = direct.output(call.root) + std::size_t(direct.rank()) * part;
  push(direct.input(direct.rank()), {&place, 1}, part);
  direct.finish();
}

}  // namespace vccl
