// The communicators of a group: one a device, each with the stream its collectives run on.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "csrc_device/runtime/stream.hpp"
#include "csrc_pg/message_lane.hpp"
#include "transport/communicator.hpp"

namespace vccl {

/// A communicator, and the order of its collectives.
class DeviceCommunicator {
 public:
  DeviceCommunicator(c10::Device device, std::shared_ptr<Communicator> communicator,
                     std::shared_ptr<vdev::Stream> stream)
      : device_(device), communicator_(std::move(communicator)), stream_(std::move(stream)) {}

  c10::Device device() const { return device_; }
  const std::shared_ptr<Communicator>& communicator() const { return communicator_; }
  const std::shared_ptr<vdev::Stream>& stream() const { return stream_; }

  /// Enqueues `task` on the communicator's stream, behind what the caller's current stream of the device
  /// holds and behind `after`. Returns its end. Thread-safe; tasks run one at a time, in the order of these
  /// calls.
  vdev::Event launch(vdev::Task task, vdev::Start start, const std::vector<vdev::Event>& after = {});
  /// The same on the caller's current stream of the card, left to whoever waits for it: the caller's next
  /// operator does, as a rule, and saves the worker's wake-up. Only for a card.
  vdev::Event launch_on_current_stream(vdev::Task task);

  /// The end of the collective launched last.
  vdev::Event last() const;

 private:
  vdev::Event enqueue(const std::shared_ptr<vdev::Stream>& stream, vdev::Task task, vdev::Start start);

  const c10::Device device_;
  const std::shared_ptr<Communicator> communicator_;
  const std::shared_ptr<vdev::Stream> stream_;
  // A communicator runs one operation at a time and pairs them by order. Collectives of one communicator may
  // be launched on different streams, so each waits for the one before, whichever stream that is on.
  mutable std::mutex order_;
  vdev::Event last_;
  const void* last_stream_ = nullptr;  // compared, never followed
};

/// Thread-safe. In a forked child of the process that made it, get() throws and nothing else does anything:
/// segments, sockets and places in the ring are the parent's.
class Communicators {
 public:
  struct Identity {
    int rank = 0, size = 1;
    bool high_priority = false;
  };
  Communicators(c10::intrusive_ptr<c10d::Store> store, Identity identity);
  ~Communicators();

  /// The communicator of `device` ("vdev:i" or "cpu"). Makes it at first use, which takes all ranks and at
  /// most `timeout`; `name` is the group's, for errors. Throws Error: of the making, again at every later
  /// call; that the group was aborted or closed; the failure of any of its communicators.
  std::shared_ptr<DeviceCommunicator> get(c10::Device device, const std::string& name, Milliseconds timeout);
  /// Where messages of `device` go: over the communicator of the CPU, whatever the device. Throws as get().
  std::shared_ptr<MessageLane> lane(c10::Device device, const std::string& name, Milliseconds timeout);
  /// Those that exist.
  std::vector<std::shared_ptr<DeviceCommunicator>> all() const;

  /// Fails every communicator, also one that is being made; whoever waits, throws. Never blocks.
  void abort(const std::string& reason) noexcept;
  /// Lets what was launched come to its end, collectives and messages, but aborts it after `patience`; then
  /// leaves the group and frees everything. Later calls of get() throw. Idempotent.
  void close(Milliseconds patience) noexcept;
  /// The failure of a communicator: one that is no abort, where there is one.
  std::optional<Error> failure() const;

  /// How many of this process, of several ranks each, have a CPU communicator that was made when no CPU
  /// memory was shared: it stages CPU tensors for good.
  static int that_stage_cpu_tensors();

 private:
  struct Slot {
    std::shared_ptr<DeviceCommunicator> made;
    std::shared_ptr<MessageLane> lane;
    std::optional<Error> failure;  // of making it
  };

  std::shared_ptr<DeviceCommunicator> make(c10::Device device, const std::string& name, Milliseconds timeout);
  void check_usable() const;
  void check_process(const std::string& name) const;
  std::vector<std::shared_ptr<MessageLane>> lanes() const;
  bool inherited() const;

  const int process_;  // that made this
  const c10::intrusive_ptr<c10d::Store> store_;
  const Identity identity_;
  std::mutex making_;         // held while one is made: all ranks make theirs in the same order
  mutable std::mutex mutex_;  // of the table and the reason; never held while waiting
  std::map<c10::Device, Slot, bool (*)(const c10::Device&, const c10::Device&)> slots_;
  std::string closed_;  // why; empty while open
  std::shared_ptr<std::atomic<bool>> cancelled_;
  std::atomic<bool> stages_cpu_tensors_{false};
};

}  // namespace vccl
