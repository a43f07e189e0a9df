#include "csrc_device/runtime/graph.hpp"

#include <utility>

#include "base/text.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/queue.hpp"

namespace vdev {

/// One replay as a task. Its users are told if it is destroyed before it has run to its end: the stream had
/// an error before, or was abandoned, or a task of the graph threw.
struct Graph::Replay {
  Replay(std::shared_ptr<const Graph> g, Task b) : graph(std::move(g)), begin(std::move(b)) {}
  ~Replay() {
    if (done) return;
    for (const auto& user : graph->users_) user->given_up();
  }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  const std::shared_ptr<const Graph> graph;
  const Task begin;
  bool done = false;
};

Graph::Graph(std::vector<CapturedTask> tasks, std::vector<std::shared_ptr<ReplayUser>> users,
             std::vector<std::unique_ptr<PoolUse>> pools)
    : tasks_(std::move(tasks)), users_(std::move(users)), pools_(std::move(pools)) {}

// The tasks run in the order in which the host gave them to the captured streams. That order respects every
// stream's own order and every wait: an event is recorded before a stream waits for it. A block that was
// freed and handed out again during the capture is also used in that order only. What the replay gives up is
// overlap between the captured streams: the tasks of a graph run one at a time, whereas eager streams have a
// worker each. On as many cores as ranks, which is how cards are used, there is no core for a second worker.
void Graph::run() const {
  const auto queue = Queue::running();
  for (const auto& captured : tasks_) {
    queue->give_way();
    const auto activity = ActivityRun::part([&] { return captured.label; });
    captured.task();
  }
}

void Graph::replay(Stream& stream, Task begin) {
  if (stream.queue()->capture()) {
    refuse_captured(stream, "the replay of a graph");
  }
  auto replay = std::make_shared<Replay>(shared_from_this(), std::move(begin));
  std::lock_guard lock(order_);
  for (const auto& use : pools_) use->allocator().use_pool(use->pool(), stream.queue());
  stream.wait(last_);
  std::vector<std::unique_ptr<ReplayTurn>> turns;
  for (const auto& user : users_) {
    if (auto turn = user->begin(stream)) turns.push_back(std::move(turn));
  }
  const ActivityScope activity([] { return ActivityLabel{ActivityKind::kGraph, "graph replay"}; });
  stream.enqueue([replay = std::move(replay)] {
    if (replay->begin) replay->begin();
    replay->graph->run();
    replay->done = true;
  });
  last_ = stream.record();
  for (const auto& turn : turns) turn->enqueued(last_);
}

std::string Graph::as_dot() const {
  std::string text = "digraph {\n";
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    text += base::text("  ", i, " [label=\"", i, ": ", tasks_[i].stream, "\"];\n");
    for (const auto before : tasks_[i].after) text += base::text("  ", before, " -> ", i, ";\n");
  }
  return text + "}\n";
}

}  // namespace vdev
