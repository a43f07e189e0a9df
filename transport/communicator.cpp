#include "transport/communicator.hpp"

#include "base/text.hpp"
#include "transport/communicator/group_communicator.hpp"

namespace vccl {

void CommunicatorConfig::check_rank() const {
  if (size < 1 || rank < 0 || rank >= size)
    throw Error(ErrorCode::invalid, base::text("rank ", rank, " of a group of ", size, " ranks"));
  if (!global_ranks.empty() && global_ranks.size() != static_cast<std::size_t>(size)) {
    throw Error(ErrorCode::invalid, base::text("a group of ", size, " ranks was given the numbers of ",
                                               global_ranks.size(), " ranks in the job"));
  }
}

void CommunicatorConfig::check_regions() const {
  if (regions.size() > kMaxRegions) {
    throw Error(ErrorCode::invalid,
                base::text(regions.size(), " regions were given; at most ", kMaxRegions, " can be shared"));
  }
}

std::unique_ptr<Communicator> Communicator::create(Store& store, const CommunicatorConfig& config) {
  return std::make_unique<GroupCommunicator>(store, config);
}

const std::string& Communicator::algorithm_choice() const {
  static const std::string kNone;
  return kNone;
}

Operation::Operation(Communicator& communicator, const Announcement& announcement, const Deadline& deadline)
    : communicator_(communicator) {
  communicator_.begin(announcement, deadline);
}

Operation::~Operation() {
  if (!finished_) communicator_.cut_short();
}

void Operation::finish() {
  communicator_.finish();
  finished_ = true;
}

}  // namespace vccl
