// Puts jobs together from the recorders of their processes.
#pragma once

#include <string>
#include <vector>

#include "diagnosis/job.hpp"
#include "diagnosis/other_hosts.hpp"

namespace vccl {

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

/// Adds what other hosts have answered about ranks of the job that are not known. What an answer says of
/// other jobs, or of ranks that the job cannot have, does not count.
void add_far_ranks(Job& job, OtherHosts::Answers answers, const DiagnosisOptions& options);

}  // namespace vccl
