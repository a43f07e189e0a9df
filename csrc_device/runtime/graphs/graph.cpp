#include "csrc_device/runtime/graph.hpp"

#include <utility>

#include "base/text.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/queue.hpp"

namespace vdev {

/// One replay as a task.
class Graph::Replay final : public TaskBody {
 public:
  Replay(std::shared_ptr<const Graph> graph, Task begin)
      : graph_(std::move(graph)), begin_(std::move(begin)) {}
  void run() override {
    if (begin_) begin_->run();
    graph_->run();
  }
  void give_up(const FailurePtr& failure) override { graph_->give_up(failure); }

 private:
  const std::shared_ptr<const Graph> graph_;
  const Task begin_;
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
    run_part(*captured.task);
  }
}

void Graph::give_up(const FailurePtr& failure) const {
  for (const auto& captured : tasks_) give_up_part(*captured.task, failure);
}

void Graph::replay(Stream& stream, Task begin) {
  if (stream.queue()->capture()) {
    refuse_captured(stream, "the replay of a graph");
  }
  const auto replay = std::make_shared<Replay>(shared_from_this(), std::move(begin));
  std::lock_guard lock(order_);
  for (const auto& use : pools_) use->allocator().use_pool(use->pool(), stream.queue());
  stream.wait(last_);
  std::vector<std::unique_ptr<ReplayTurn>> turns;
  for (const auto& user : users_) {
    if (auto turn = user->begin(stream)) turns.push_back(std::move(turn));
  }
  const ActivityScope activity([] { return ActivityLabel{ActivityKind::kGraph, "graph replay"}; });
  stream.enqueue(Task(replay));
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
