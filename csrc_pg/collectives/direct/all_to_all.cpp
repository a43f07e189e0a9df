// Direct all_to_all: each rank reads its chunks from all inputs.
#include "base/text.hpp"
#include "csrc_pg/collectives/buffers/copy.hpp"
#include "csrc_pg/collectives/buffers/splits.hpp"
#include "csrc_pg/collectives/direct/direct.hpp"
#include "csrc_pg/collectives/direct/direct_call.hpp"

namespace vccl {

namespace {

/// Throws if `count` elements from `offset` on do not lie in a buffer of `length`: a peer announced its
/// splits, and how long its buffers are.
void check_inside(Communicator& communicator, int rank, const char* buffer, std::size_t length,
                  std::size_t offset, std::size_t count) {
  if (offset <= length && count <= length - offset) return;
  communicator.fail(ErrorCode::protocol,
                    base::text(communicator.names().of_group(rank), " announced splits beyond its ", buffer,
                               " for all_to_all"));
  communicator.check();
}

}  // namespace

void direct_all_to_all(Communicator& communicator, const Call& call) {
  DirectCall direct(communicator, call);
  const Splits splits(Splits::Announced{}, communicator, call);
  const std::size_t element = direct.element();
  direct.do_work_items([&](int rank) {
    const std::size_t output = direct.peers().output(rank).size();
    const bool leaves_caches = leave_caches(output, direct.size());
    for (const int from : direct.ranks_from(rank)) {
      const std::size_t count = splits.count(from, rank);
      const std::size_t in = splits.input_offset(from, rank), out = splits.output_offset(from, rank);
      check_inside(communicator, from, "input", direct.peers().input(from).size() / element, in, count);
      check_inside(communicator, rank, "output", output / element, out, count);
      pull(direct.output(rank) + out * element, direct.input(from) + in * element, count * element,
           leaves_caches);
    }
  });
}

}  // namespace vccl
