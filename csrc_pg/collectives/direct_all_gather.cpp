// Direct all_gather: each rank writes its own part into all outputs.
#include "csrc_pg/collectives/direct.hpp"
#include "csrc_pg/collectives/direct_copy.hpp"
#include "csrc_pg/collectives/parts.hpp"

namespace vccl {

void direct_all_gather(Communicator& communicator, const Call& call) {
  Direct direct(communicator, call);
  const Parts parts(call.output_counts, call.count, direct.size());
  const std::size_t element = direct.element();
  const std::byte* own = direct.input(direct.rank());
  std::vector<std::byte*> outputs;
  for (int turn = 0; turn < direct.size(); ++turn)
    outputs.push_back(direct.output(direct.other(turn)) + parts.begin(direct.rank()) * element);
  push(own, outputs, parts.count(direct.rank()) * element);
  direct.finish();
}

}  // namespace vccl
