// The jobs that this user has on this machine: what each rank has called, whom it waits for, and who is to
// blame.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "diagnosis/other_hosts.hpp"
#include "diagnosis/processes/process_state.hpp"
#include "diagnosis/stacks.hpp"
#include "recorder/flight_reader.hpp"

namespace vccl {

/// A call of a rank that is not over.
struct PendingCall {
  std::size_t group = 0;  // in Job::groups
  std::string text;       // "all_reduce(float32 [4])", or for messages "send(float32 [4]) to rank 1, tag 0"
  std::string name;       // "all_reduce"
  std::uint64_t sequence = 0;  // of the group's collectives or messages
  bool message = false, sends = false, started = false;
  int peer = -1;  // of a message: the rank in the job; -1 for any
  int tag = 0;
  std::int64_t created_ns = 0;  // of the steady clock
};

/// One rank of a job, and its process.
struct JobRank {
  int rank = -1;
  pid_t pid = 0;
  bool far = false;  // on another host: `pid` is a number of that host, and must not be used here
  std::string host, program;
  int card = -1;  // that the last operation used; -1 for the CPU
  Activity activity = Activity::sleeps;
  FlightSnapshot snapshot;
  std::vector<PendingCall> calls;  // the oldest first
  std::optional<Stacks> stacks;    // if it was asked and has answered
};

/// A process that seems to be a rank, and has made no group yet.
struct UnstartedProcess {
  pid_t pid = 0;
  int rank = -1;  // in the job; -1 if it is not known
  Activity activity = Activity::sleeps;
};

struct JobGroup {
  std::string name, description;
  std::vector<int> ranks;                            // in the job
  std::map<int, FlightSnapshot::Progress> progress;  // by rank, for those that have the group
  std::map<int, bool> open;                          // by rank; false once destroyed there
};

/// A rank waits in a call for other ranks.
struct JobWait {
  int rank = -1;
  std::string call;   // "all_reduce(float32 [4]), collective 3 of group default_pg"
  std::string group;  // empty if the call is known from the rank's stack only
  std::vector<int> awaited;
  std::int64_t since_ns = 0;
  const PendingCall* pending = nullptr;  // null if the recorder has no entry of the call
};

struct Finding {
  /// What is wrong: "missing", "stopped", "cycle", "unmatched", "mismatch" or "dead".
  std::string kind;
  std::vector<int> culprits;  // ranks in the job, sorted
  std::string text;
};

struct Job {
  std::string id;
  int size = 0;
  std::map<int, JobRank> ranks;
  std::vector<UnknownRanks> unknown;        // if other hosts were asked
  std::vector<UnstartedProcess> unstarted;  // only looked for if ranks without a flight recorder are awaited
  std::vector<JobGroup> groups;
  std::vector<JobWait> waits;
  std::vector<Finding> findings;
};

struct DiagnosisOptions {
  /// How long to wait for the stacks of all ranks that are asked. Zero: nobody is asked.
  std::chrono::milliseconds stack_patience{0};
  /// A wait that has lasted less is left out of the findings.
  std::chrono::nanoseconds lasting = std::chrono::seconds(2);
  /// Looks at no other job, unless empty.
  std::string only_job;
  /// Is asked about ranks of a job that are not on this host, unless null.
  OtherHosts* others = nullptr;
  /// Returns torch's name of a dtype, or null for a number that is no dtype's.
  const char* (*dtype_name)(std::uint8_t dtype) = nullptr;
};

struct Diagnosis {
  struct Unreadable {
    pid_t pid;
    std::string text;
  };
  std::vector<Job> jobs;
  std::vector<Unreadable> unreadable;
};

/// Looks at all jobs of this user on this host, and with DiagnosisOptions::others at their ranks on other
/// hosts. Takes about kSample, and longer if stacks are asked for. Only ranks that
/// others have waited for, or jobs in which no operation has begun or ended for a while, are asked for their
/// stacks: a rank that runs at full speed is not interrupted.
Diagnosis diagnose(const DiagnosisOptions& options);

/// Returns sentences that say which two calls the ranks `rank` and `other` have made in different order, one
/// of them the oldest collective of `group` on cards that is not over. `group` is a description, or the name
/// of a group without one. Returns an empty text if the recorders do not tell.
std::string order_text(const Job& job, const std::string& group, int rank, int other,
                       const DiagnosisOptions& options);

/// Returns the jobs with what their ranks have called, and no more: no rank is watched, or asked for its
/// stack.
std::vector<Job> calls_of_jobs(const DiagnosisOptions& options);

/// Returns sentences about collectives on cards that the ranks have called in a circle, or an empty text: one
/// rank has called A before B, the next B before C, and the last C before A. Only calls with a place in the
/// order count (FlightEntry::place_in_order). Of several circles it names one of the shortest of the oldest.
std::string circle_text(const Job& job, const DiagnosisOptions& options);

/// Returns the processes of one job on this host, for an answer to another host. With `activity`, it watches
/// for about kSample what they do.
std::vector<ObservedProcess> observe_job(const std::string& job, bool activity);

/// Returns what a rank does and where: "sleeps in load (data.py:31), called by ...". The rank was asked for
/// its stack.
std::string whereabouts(const JobRank& rank);

/// Returns the stack that says where the rank is: that of the main thread, unless this waits for autograd's
/// thread, which runs the hooks of a backward. Returns null if there is none.
const ThreadStack* telling_stack(const Stacks& stacks);

}  // namespace vccl
