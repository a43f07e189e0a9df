// A graph as PyTorch sees it: torch.accelerator.Graph, torch.vdev.VDEVGraph and torch.cuda.CUDAGraph.
#pragma once

#include <memory>
#include <string>

#include <ATen/core/Generator.h>
#include <ATen/core/GraphImplInterface.h>

#include "csrc_device/runtime/graph.hpp"
#include "csrc_device/torch/device/generator.hpp"
#include "csrc_device/torch/races/watch.hpp"

namespace vdev {

/// Captures the current stream of the current card, and replays the captured tasks. Every member raises
/// RuntimeError if it is called at the wrong time. After an error in a capture, the stream and the generators
/// are as they were before, and the object can capture again.
class CardGraph final : public at::GraphImplInterface {
 public:
  explicit CardGraph(const at::GraphImplArgs& args = {}) : keep_graph_(args.keep_graph) {}
  ~CardGraph() override;

  /// `pool` is the result of graph_pool_handle() or of another graph's pool(); {0, 0} asks for a new pool. A
  /// card's default stream cannot be captured.
  void capture_begin(at::MempoolId_t pool, at::GraphCaptureMode mode) override;
  void capture_end() override;
  void instantiate() override;
  void replay() override;
  void reset() override;
  at::MempoolId_t pool() const override;
  void enable_debug_mode() override { debug_ = true; }
  /// Writes the tasks and their order in the language of Graphviz.
  void debug_dump(const std::string& path) override;

  /// Lets the next capture draw random numbers from `generator`, as it may from the cards' own generators.
  void register_generator(const at::Generator& generator);
  /// Returns the number of captured tasks.
  std::size_t size() const;

 private:
  void check_captured(const char* what) const;

  const bool keep_graph_;
  bool debug_ = false;
  int card_ = -1;
  PoolNumber pool_ = kProgramPool;
  std::shared_ptr<GraphGenerators> generators_ = std::make_shared<GraphGenerators>();
  std::shared_ptr<Stream> stream_;
  std::shared_ptr<Capture> capture_;
  std::shared_ptr<Graph> graph_;
  // What every replay touches, and the end of the last one. Null while nobody looks for races.
  races::GraphAccesses accesses_;
  races::Point last_replay_;
};

/// Makes torch.accelerator.Graph use CardGraph. Call this once, when torch knows the name of the device.
void register_graphs();

}  // namespace vdev
