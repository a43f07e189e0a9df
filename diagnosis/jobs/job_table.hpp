// Puts jobs together from the recorders of their processes.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "diagnosis/job.hpp"

namespace vccl {

/// What was read of one process.
struct ObservedProcess {
  pid_t pid = 0;
  pid_t parent = 0;
  FlightSnapshot snapshot;
  Activity activity = Activity::sleeps;
};

/// Returns the call with its first tensors: "all_reduce(float32 [4])".
std::string entry_text(const FlightEntry& entry, const DiagnosisOptions& options);

/// Returns the ranks' numbers in the job, as far as they are known.
std::vector<int> ranks_of(const FlightGroup& group);

/// Returns whether a process has recorded this group of the job.
bool is_same(const JobGroup& group, const FlightGroup& recorded);

/// Returns the group's description, or its name if it has none.
const std::string& name_of(const JobGroup& group);

/// Returns the jobs that the processes belong to, by their ids. A process that is still making its first
/// group knows no id yet, and belongs to the job of the processes that have the same parent, unless that job
/// has its rank already. A process that is dead counts if its job has a living one, and its rank no other.
std::vector<Job> jobs_of(std::vector<ObservedProcess> processes, const DiagnosisOptions& options);

}  // namespace vccl
