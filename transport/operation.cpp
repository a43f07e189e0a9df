// What a Communicator and an Operation do whatever the ranks are bound by.
#include "transport/communicator.hpp"

namespace vccl {

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
