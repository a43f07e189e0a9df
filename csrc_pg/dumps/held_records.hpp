// Flight recorders of other ranks, which this process holds open so that they outlive those ranks.
#pragma once

#include <vector>

#include "base/descriptor.hpp"
#include "transport/communicator.hpp"

namespace vccl {

/// Holds the flight recorders of ranks of this host. The memory of a recorder is gone with the last process
/// that has it open, so the record of a rank that dies would be. One rank of each host holds the others', and
/// the next one holds that rank's: no two ranks hold each other's and their own. Readers find them there
/// (find_flight_recorders()).
class HeldRecords {
 public:
  /// Call this when the default group has been made and this process's recorder says so. Waits a little for
  /// other ranks to get as far. What does not come, or cannot be opened, is not held.
  void hold(const Communicator& communicator);
  void drop() noexcept { files_.clear(); }

 private:
  std::vector<base::FileDescriptor> files_;
};

}  // namespace vccl
