// What other hosts say of the ranks of a job. This room knows no network: who can ask implements OtherHosts.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "diagnosis/processes/process_state.hpp"
#include "diagnosis/stacks.hpp"
#include "recorder/flight_reader.hpp"

namespace vccl {

struct Job;

/// What was read of one process.
struct ObservedProcess {
  pid_t pid = 0;
  pid_t parent = 0;
  FlightSnapshot snapshot;
  Activity activity = Activity::sleeps;
  bool far = false;  // on another host: the two numbers are of that host, and must not be used here
};

/// Ranks of a job on another host of which nothing is known.
struct UnknownRanks {
  std::string host;
  std::vector<int> ranks;  // in the job
  bool silent = true;      // nobody has answered there; otherwise the host knows nothing of these ranks
};

class OtherHosts {
 public:
  struct Answers {
    std::vector<ObservedProcess> processes;
    std::vector<UnknownRanks> unknown;
  };

  virtual ~OtherHosts() = default;
  /// Asks the hosts of those ranks that `job` does not have. With `activity` they also watch for a moment
  /// what their processes do. Never throws.
  virtual Answers observe(const Job& job, bool activity) noexcept = 0;
  /// Asks ranks on other hosts for their stacks, and waits for these at most `patience` and for the hosts a
  /// little longer. Returns the stacks by rank. Never throws.
  virtual std::map<int, Stacks> stacks(const Job& job, const std::vector<int>& ranks,
                                       std::chrono::milliseconds patience) noexcept = 0;
};

}  // namespace vccl
