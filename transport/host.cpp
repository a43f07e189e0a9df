#include "transport/host.hpp"

#include <sched.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <climits>
#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>

#include "transport/segment.hpp"

namespace vccl {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string link_target(const char* path) {
  char target[PATH_MAX];
  const ssize_t length = readlink(path, target, sizeof target);
  return length > 0 ? std::string(target, static_cast<std::size_t>(length)) : std::string();
}

// The quota of this process's own control group (version 2, then 1), in cores; 0 where there is none.
double quota() {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const auto path = line.substr(line.rfind(':') + 1);
    for (const std::string& folder : {"/sys/fs/cgroup" + path, std::string("/sys/fs/cgroup")}) {
      std::istringstream max(first_line(folder + "/cpu.max"));
      double limit = 0, period = 0;
      if (max >> limit >> period && period > 0) return limit / period;
    }
    if (line.find(":cpu") == std::string::npos) continue;
    for (const std::string& folder : {"/sys/fs/cgroup/cpu" + path, std::string("/sys/fs/cgroup/cpu")}) {
      const double limit = std::atof(first_line(folder + "/cpu.cfs_quota_us").c_str());
      const double period = std::atof(first_line(folder + "/cpu.cfs_period_us").c_str());
      if (limit > 0 && period > 0) return limit / period;
    }
  }
  return 0;
}

}  // namespace

std::string machine_key() {
  return first_line("/proc/sys/kernel/random/boot_id") + "/" + link_target("/proc/self/ns/net");
}

std::string pid_namespace() {
  return link_target("/proc/self/ns/pid");
}

UsableCores UsableCores::of(const cpu_set_t& mask, std::int32_t limit) {
  UsableCores cores;
  static_assert(sizeof mask == sizeof cores.mask_);
  std::memcpy(cores.mask_, &mask, sizeof mask);
  cores.limit_ = limit;
  return cores;
}

UsableCores UsableCores::of_this_process() {
  cpu_set_t mask;
  // The system has more cores than the mask has bits: then there is no telling which ones these are.
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

bool are_crowded(std::span<const UsableCores> processes) {
  const auto outnumber = [&](const UsableCores& cores) {
    return std::ranges::count_if(processes, [&](const auto& one) { return one.within(cores); }) >
           cores.count();
  };
  return outnumber(all_of(processes)) || std::ranges::any_of(processes, outnumber);
}

std::string random_bytes(std::size_t bytes) {
  std::string result(bytes, '\0');
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t got = getrandom(result.data() + done, bytes - done, 0);
    if (got < 0 && errno != EINTR) throw_system("getrandom");
    if (got > 0) done += static_cast<std::size_t>(got);
  }
  return result;
}

std::string random_hex(std::size_t bytes) {
  static const char digits[] = "0123456789abcdef";
  std::string result;
  for (unsigned char byte : random_bytes(bytes)) {
    result += digits[byte >> 4];
    result += digits[byte & 15];
  }
  return result;
}

}  // namespace vccl
