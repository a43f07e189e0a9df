// The processes of a job that have made no group yet, and so have no flight recorder.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <set>
#include <string>

#include "diagnosis/job.hpp"

namespace vccl {

/// Fills in Job::unstarted: children of the launchers that started the known ranks. A launcher is the parent
/// of a rank, such as torchrun's agent. Takes `sample` to see which of them compute.
void find_unstarted(Job& job, const std::set<pid_t>& launchers, std::chrono::milliseconds sample);

/// Returns what is known of a rank that has no flight recorder: "has made no group yet; ...".
std::string whereabouts_of_unstarted(const Job& job, int rank);

}  // namespace vccl
