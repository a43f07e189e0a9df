// Captured work, which is replayed with one call.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "csrc_device/runtime/capture.hpp"
#include "csrc_device/runtime/event.hpp"
#include "csrc_device/runtime/stream.hpp"

namespace vdev {

/// Holds the tasks that Capture::end() returned. A graph is always held by a shared_ptr: a replay that is
/// queued keeps the graph, so the program may drop it at any time. Thread-safe.
class Graph : public std::enable_shared_from_this<Graph> {
 public:
  Graph(std::vector<CapturedTask> tasks, std::vector<std::shared_ptr<ReplayUser>> users,
        std::vector<std::unique_ptr<PoolUse>> pools);

  /// Enqueues the graph on `stream`, behind earlier replays of the same graph, and returns without waiting.
  /// `begin`, if not null, runs at the start of the replay, as a part of it. Each task of the graph runs,
  /// fails or is given up as if it were the stream's own. Throws CardError if the stream is captured.
  void replay(Stream& stream, Task begin);

  /// Returns the number of captured tasks.
  std::size_t size() const { return tasks_.size(); }
  /// Returns the tasks, their streams and their order in the language of Graphviz.
  std::string as_dot() const;

 private:
  class Replay;
  void run() const;
  void give_up(const FailurePtr& failure) const;

  const std::vector<CapturedTask> tasks_;
  const std::vector<std::shared_ptr<ReplayUser>> users_;
  const std::vector<std::unique_ptr<PoolUse>> pools_;
  std::mutex order_;  // guards last_, and keeps a replay's waits and its task together
  Event last_;        // the end of the last replay
};

}  // namespace vdev
