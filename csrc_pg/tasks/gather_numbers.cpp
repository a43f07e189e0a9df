#include "csrc_pg/tasks/gather_numbers.hpp"

#include "csrc_pg/collectives/collective.hpp"
#include "csrc_pg/collectives/run.hpp"

namespace vccl {

Numbers gather_numbers(Communicator& communicator, const Deadline& deadline, const Numbers& own) {
  Numbers all(own.size() * static_cast<std::size_t>(communicator.size()));
  Call call{.collective = Collective::all_gather};
  call.dtype = Dtype::int64;
  call.count = own.size();
  call.input = own.data();
  call.output = all.data();
  run(communicator, call, deadline);
  return all;
}

}  // namespace vccl
