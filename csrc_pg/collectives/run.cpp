// From a call to an algorithm: what can be refused is refused before anything moves.
#include "csrc_pg/collectives/algorithm.hpp"
#include "csrc_pg/collectives/call.hpp"

namespace vccl {

void run(Communicator& communicator, const Call& call, const Deadline& deadline) {
  check_call(communicator, call);
  const auto& algorithm = select_algorithm(communicator, call);
  Operation operation(communicator, signature_of(call),
                      window_of(call, communicator.rank(), communicator.size()), deadline);
  algorithm.run(communicator, call);
  operation.finish();
}

}  // namespace vccl
