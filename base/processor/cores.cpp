#include "base/cores.hpp"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>

#include "base/control_groups.hpp"
#include "base/files.hpp"

namespace base {
namespace {

// Returns the CPU quota of this process's own control group (version 2, then 1) in cores, or 0 if it has
// none.
double quota() {
  for (const ControlGroup& group : control_groups()) {
    for (const std::string& folder : {"/sys/fs/cgroup" + group.path, std::string("/sys/fs/cgroup")}) {
      std::istringstream max(first_line(folder + "/cpu.max"));
      double limit = 0, period = 0;
      if (max >> limit >> period && period > 0) return limit / period;
    }
    if (!group.has("cpu")) continue;
    for (const std::string& folder : {"/sys/fs/cgroup/cpu" + group.path, std::string("/sys/fs/cgroup/cpu")}) {
      const double limit = std::atof(first_line(folder + "/cpu.cfs_quota_us").c_str());
      const double period = std::atof(first_line(folder + "/cpu.cfs_period_us").c_str());
      if (limit > 0 && period > 0) return limit / period;
    }
  }
  return 0;
}

}  // namespace

UsableCores UsableCores::of(const cpu_set_t& mask, std::int32_t limit) {
  UsableCores cores;
  static_assert(sizeof mask == sizeof cores.mask_);
  std::memcpy(cores.mask_, &mask, sizeof mask);
  cores.limit_ = limit;
  return cores;
}

UsableCores UsableCores::of_this_process() {
  cpu_set_t mask;
  // sched_getaffinity() fails if the system has more cores than the mask has bits. This process then counts
  // as able to run on every core of the mask.
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) std::memset(&mask, -1, sizeof mask);
  const double limit = quota();
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  return of(mask,
            static_cast<std::int32_t>(limit > 0 ? std::min(std::floor(limit), double(online)) : online));
}

void UsableCores::add(const UsableCores& other) {
  for (int i = 0; i < kWords; ++i) mask_[i] |= other.mask_[i];
  limit_ = std::min(limit_, other.limit_);
}

bool UsableCores::within(const UsableCores& other) const {
  for (int i = 0; i < kWords; ++i) {
    if (mask_[i] & ~other.mask_[i]) return false;
  }
  return true;
}

int UsableCores::count() const {
  int cores = 0;
  for (const std::uint64_t word : mask_) cores += std::popcount(word);
  return std::max(std::min(cores, int{limit_}), 1);
}

UsableCores all_of(std::span<const UsableCores> processes) {
  UsableCores all = processes[0];
  for (const UsableCores& cores : processes) all.add(cores);
  return all;
}

bool are_oversubscribed(std::span<const UsableCores> processes) {
  const auto outnumber = [&](const UsableCores& cores) {
    return std::ranges::count_if(processes, [&](const auto& one) { return one.within(cores); }) >
           cores.count();
  };
  return outnumber(all_of(processes)) || std::ranges::any_of(processes, outnumber);
}

}  // namespace base
