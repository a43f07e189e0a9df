// What a diagnosis reads of one rank, for tests that say what the rank has called.
#pragma once

#include <string>

#include "diagnosis/jobs/job_table.hpp"

namespace vccl {

/// Returns a process of the job "job" that is this rank and has no groups yet.
inline ObservedProcess observed_rank(int rank, int size) {
  ObservedProcess process;
  process.pid = 1000 + rank;
  process.parent = 999;
  process.snapshot.process.rank = rank;
  process.snapshot.process.size = size;
  put_text(process.snapshot.process.job, "job");
  return process;
}

}  // namespace vccl
