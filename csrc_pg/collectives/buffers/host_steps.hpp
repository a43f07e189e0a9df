// In which steps something gets from hosts to other hosts over the leaps (HostRing).
#pragma once

#include <vector>

namespace vccl {

/// What the leader of one host sends and receives, in this order. It keeps what it has of each host in one
/// place, the hosts one behind the other in the order of `hosts`. Each step is about a range of these.
struct HostSteps {
  struct Step {
    bool sends;      // to the right on a leap; else it receives from the left on it
    int leap;        // over 2^leap hosts
    int begin, end;  // of `hosts`
  };
  std::vector<int> hosts;  // positions
  std::vector<Step> steps;
};

/// Return the steps of the host at `position`, of `size` hosts. Each host sends at most once on each leap.
/// From every host to all hosts, by dissemination: on each leap, every host passes on all it has, or as much
/// of it as the receiver lacks.
HostSteps steps_from_all_to_all(int size, int position);
/// From the host at `root` to all hosts, along a binomial tree.
HostSteps steps_from_one(int size, int position, int root);
/// From every host to the one at `root`, along a binomial tree.
HostSteps steps_to_one(int size, int position, int root);

}  // namespace vccl
