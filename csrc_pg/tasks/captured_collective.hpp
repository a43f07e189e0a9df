// A collective in a graph, which runs with each replay.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "csrc_device/runtime/task.hpp"
#include "csrc_pg/operations/recording.hpp"
#include "csrc_pg/tasks/collective_plan.hpp"

namespace vccl {

/// Runs the plans whenever the graph is replayed. Each run is a call of its own for the communicator, with
/// its own number and its own comparison with the peers, so all ranks have to replay the same graph. A
/// failure spoils the outputs and is reported to the stream that replays. The graph keeps neither the group
/// nor, as with operators, memory of the card: once the group is destroyed, a replay fails.
class CapturedCollective final : public vdev::TaskBody {
 public:
  /// What the flight recorder notes of each replay.
  struct Record {
    std::shared_ptr<Recording> in;
    std::vector<FlightEntry> entries;
  };

  CapturedCollective(const std::shared_ptr<Communicator>& communicator, std::string name,
                     std::vector<CollectivePlan> plans, Milliseconds timeout,
                     std::shared_ptr<vdev::FailureOwner> failures, Record record)
      : communicator_(communicator),
        name_(std::move(name)),
        plans_(std::move(plans)),
        timeout_(timeout),
        failures_(std::move(failures)),
        record_(std::move(record)) {}

  void run() override;
  /// Spoils the outputs, and fails the communicator, so that no peer waits.
  void give_up(const vdev::FailurePtr& failure) override;

 private:
  void fail_as_destroyed() const;

  const std::weak_ptr<Communicator> communicator_;
  const std::string name_;
  const std::vector<CollectivePlan> plans_;
  const Milliseconds timeout_;
  const std::shared_ptr<vdev::FailureOwner> failures_;
  const Record record_;
};

}  // namespace vccl
