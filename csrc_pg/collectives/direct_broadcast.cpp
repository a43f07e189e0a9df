// Direct broadcast: each rank writes its share of the root's elements into all outputs.
#include "csrc_pg/collectives/direct.hpp"
#include "csrc_pg/collectives/direct_copy.hpp"

namespace vccl {

void direct_broadcast(Communicator& communicator, const Call& call) {
  Direct direct(communicator, call);
  const auto [begin, count] = direct.share(call.count, direct.rank());
  const std::size_t offset = begin * direct.element();
  std::vector<std::byte*> outputs;
  for (int turn = 0; turn < direct.size(); ++turn)
    outputs.push_back(direct.output(direct.other(turn)) + offset);
  push(direct.input(call.root) + offset, outputs, count * direct.element());
  direct.finish();
}

}  // namespace vccl
