// Tells the race detector of the group's operations (csrc_device/torch/races/watch.hpp).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "csrc_device/torch/races.hpp"
#include "csrc_pg/communicators/device_communicator.hpp"
#include "csrc_pg/communicators/message_lane.hpp"
#include "csrc_pg/operations/request.hpp"
#include "csrc_pg/tasks/collective_plan.hpp"
#include "csrc_pg/tasks/message_task.hpp"

namespace vccl {

/// Returns what plans, and those of messages, read and write. Empty while nobody looks for races.
std::vector<vdev::races::Touched> touched_by(std::span<const CollectivePlan> plans,
                                             std::span<const MessageCall> messages = {});

/// Names a group's operations for the processes that share memory (csrc_device/torch/races/processes.hpp).
struct Members {
  const std::string& id;  // of the group
  int rank, size;
};

/// Returns this rank's part in a collective. `number` is that of the group's collective.
vdev::races::Meeting meeting_of(const Members& members, const CollectivePlan& plan, c10::Device device,
                                std::uint64_t number);
/// Returns this rank's part in each message.
std::vector<vdev::races::Meeting> meetings_of(const Members& members, std::span<const MessageCall> messages,
                                              c10::Device device);

// Each function returns the operation's end, for which its handle waits; null while nobody looks for races.

/// Call this for a collective before it is launched on the communicator's stream, or on the caller's current
/// one if it is not asynchronous. In a capture, call it once the collective is in the graph: only then does
/// the communicator's stream belong to the capture.
/// `meeting` is null in a capture, where nothing runs.
vdev::races::Point watch_collective(const Request& request, const DeviceCommunicator& where,
                                    const std::vector<vdev::races::Touched>& touched,
                                    const vdev::races::Meeting* meeting);
/// Call this for messages, and the collectives that are launched together with them, before their launch.
/// `peer` is the rank of a single message, or -1.
vdev::races::Point watch_messages(const char* name, const MessageLane& lane, int peer,
                                  const std::vector<vdev::races::Touched>& touched,
                                  const std::vector<vdev::races::Meeting>& meetings);

}  // namespace vccl
