// Binding ranks to cores.
#pragma once

#include <sched.h>

#include <vector>

#include "transport/error.hpp"

namespace vccl {

/// The cores that the calling thread may run on.
inline std::vector<int> cores_of_this_thread() {
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) throw_system("sched_getaffinity");
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &mask)) cores.push_back(core);
  }
  return cores;
}

inline cpu_set_t mask_of(const std::vector<int>& cores) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  for (const int core : cores) CPU_SET(core, &mask);
  return mask;
}

/// Binds the calling thread, and those that it starts from now on.
inline void bind_to(const std::vector<int>& cores) {
  const cpu_set_t mask = mask_of(cores);
  if (sched_setaffinity(0, sizeof mask, &mask) != 0) throw_system("sched_setaffinity");
}

}  // namespace vccl
