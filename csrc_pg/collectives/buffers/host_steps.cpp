#include "csrc_pg/collectives/buffers/host_steps.hpp"

#include <algorithm>
#include <bit>

namespace vccl {

namespace {

/// Returns the least leap that is longer than `distance`.
int leap_over(int distance) {
  return std::bit_width(static_cast<unsigned>(distance));
}

/// Adds the positions of a host and of those whose payloads it passes on to `root`. Hosts are given by their
/// distance from there.
void add_subtree(std::vector<int>& hosts, int size, int root, int distance) {
  hosts.push_back((root - distance + size) % size);
  for (int leap = leap_over(size - 1) - 1; leap >= leap_over(distance); --leap)
    if (const int child = distance + (1 << leap); child < size) add_subtree(hosts, size, root, child);
}

}  // namespace

HostSteps steps_from_all_to_all(int size, int position) {
  HostSteps result;
  for (int back = 0; back < size; ++back) result.hosts.push_back((position - back + size) % size);
  for (int leap = 0, far = 1; far < size; ++leap, far *= 2) {
    const int count = std::min(far, size - far);
    result.steps.push_back({true, leap, 0, count});
    result.steps.push_back({false, leap, far, far + count});
  }
  return result;
}

// A host that is 2^k to 2^(k + 1) - 1 hosts behind the root receives on leap k, and passes on over all longer
// leaps. The first host that it passes on to has the most hosts behind it.
HostSteps steps_from_one(int size, int position, int root) {
  HostSteps result{{root}, {}};
  const int distance = (position - root + size) % size;
  int leap = leap_over(distance);
  if (distance > 0) result.steps.push_back({false, leap - 1, 0, 1});
  for (; distance + (1 << leap) < size; ++leap) result.steps.push_back({true, leap, 0, 1});
  return result;
}

// This is the same tree the other way round. What comes over the longest leap has passed through the fewest
// hosts and is there first.
HostSteps steps_to_one(int size, int position, int root) {
  HostSteps result;
  const int distance = (root - position + size) % size;
  result.hosts.push_back(position);
  for (int leap = leap_over(size - 1) - 1; leap >= leap_over(distance); --leap) {
    const int child = distance + (1 << leap), begin = int(result.hosts.size());
    if (child >= size) continue;
    add_subtree(result.hosts, size, root, child);
    result.steps.push_back({false, leap, begin, int(result.hosts.size())});
  }
  if (distance > 0) result.steps.push_back({true, leap_over(distance) - 1, 0, int(result.hosts.size())});
  return result;
}

}  // namespace vccl
