// One collective, or several that were coalesced, as their stream runs them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "csrc_pg/outcome.hpp"
#include "csrc_pg/plan.hpp"

namespace vccl {

/// Runs the plans once, one after the other, and writes the outcome. A task that is destroyed without having
/// run (its stream had an earlier error, or was abandoned at exit) fails the communicator: the peers did run
/// theirs, and from here on our operations would be paired with the wrong ones of theirs.
class CollectiveTask {
 public:
  /// `name`: of the operation, for messages. `throws`: errors also leave run(), to become the stream's.
  CollectiveTask(std::shared_ptr<Communicator> communicator, std::string name, std::vector<Plan> plans,
                 Milliseconds timeout, std::shared_ptr<Outcome> outcome, bool throws);
  ~CollectiveTask();
  CollectiveTask(const CollectiveTask&) = delete;
  CollectiveTask& operator=(const CollectiveTask&) = delete;

  /// The timeout of each plan counts from its turn: what the stream had to do before is no fault of the
  /// peers.
  void run();

 private:
  // Not the stream: the last owner of a stream must not be a task on that stream's own worker.
  const std::shared_ptr<Communicator> communicator_;
  const std::string name_;
  std::vector<Plan> plans_;
  const Milliseconds timeout_;
  const std::shared_ptr<Outcome> outcome_;
  const bool throws_;
  bool ran_ = false;
};

}  // namespace vccl
