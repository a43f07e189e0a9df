#include "csrc_device/torch/device/card_graph.hpp"

#include <fstream>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/errors.hpp"
#include "csrc_device/torch/gil.hpp"
#include "csrc_device/torch/streams.hpp"

namespace vdev {
namespace {

CaptureMode mode_of(at::GraphCaptureMode mode) {
  switch (mode) {
    case at::GraphCaptureMode::ThreadLocal:
      return CaptureMode::kThreadLocal;
    case at::GraphCaptureMode::Relaxed:
      return CaptureMode::kRelaxed;
    case at::GraphCaptureMode::Default:
    case at::GraphCaptureMode::Global:
      break;
  }
  return CaptureMode::kGlobal;
}

}  // namespace

CardGraph::~CardGraph() {
  if (in_bad_fork()) {
    // The parent's allocator may be locked for ever in the child.
    new std::shared_ptr<Graph>(std::move(graph_));
    new std::shared_ptr<Capture>(std::move(capture_));
    new std::shared_ptr<Stream>(std::move(stream_));
    return;
  }
  reset();
}

void CardGraph::capture_begin(at::MempoolId_t pool, at::GraphCaptureMode mode) {
  TORCH_CHECK(!graph_ && !capture_,
              "This graph has captured something already. Make another one, or call reset() first.");
  const PoolNumber number = pool.second;
  TORCH_CHECK(pool == at::MempoolId_t(0, 0) || (pool.first == 0 && number >= kFirstPrivatePool),
              "pool has to come from graph_pool_handle(), or from pool() of another graph");
  const int card = current_card();
  auto stream = current_stream(card);
  TORCH_CHECK(stream->id() != 0, pose() == Pose::cuda ? "CUDA graphs" : "Graphs",
              " must be captured on a non-default stream. (However, after capture, "
              "it's ok to replay them on the default stream.)");
  WithoutGil no_gil;
  const PoolNumber used = number == 0 ? new_private_pool() : number;
  capture_ = Capture::begin(stream, mode_of(mode), used, generators_);
  // The pool belongs to the graph even if nothing is allocated.
  capture_->pool_in(vdev::card(card).allocator());
  stream_ = std::move(stream);
  card_ = card;
  pool_ = used;
}

void CardGraph::capture_end() {
  TORCH_CHECK(capture_, "capture_end() was called without capture_begin()");
  WithoutGil no_gil;
  const auto capture = std::exchange(capture_, nullptr);
  const auto stream = std::exchange(stream_, nullptr);
  if (current_stream(card_) != stream) {
    capture->invalidate("capture must end on the same stream it began on");
  }
  if (races::is_on()) accesses_ = races::end_capture(*capture);
  graph_ = capture->end();
  if (graph_->size() == 0) {
    TORCH_WARN(pose() == Pose::cuda ? "The CUDA Graph" : "The graph",
               " is empty. This usually means that the graph was attempted to be captured on wrong device or "
               "stream.");
  }
}

void CardGraph::check_captured(const char* what) const {
  TORCH_CHECK(graph_, what, " was called on a graph without a preceding successful capture");
}

void CardGraph::instantiate() {
  check_captured("instantiate()");
  TORCH_CHECK(keep_graph_, "instantiate() is intended to be called by the user only when keep_graph=true");
}

void CardGraph::replay() {
  check_captured("replay()");
  WithoutGil no_gil;
  if (races::is_on()) {
    // As with CUDA, a replay of a graph comes after the one before, on whichever stream that was.
    races::wait(*current_stream(card_), last_replay_);
    races::replay(*current_stream(card_), accesses_);
    last_replay_ = races::point_of(*current_stream(card_));
  }
  struct Start {
    std::shared_ptr<CapturedState> state;
    RandomState::Point point;
  };
  std::vector<Start> starts;
  for (const auto& state : generators_->all()) starts.push_back({state, state->advance()});
  Task begin;
  if (!starts.empty()) {
    begin = [starts = std::move(starts)] {
      for (const auto& start : starts) start.state->begin_replay(start.point);
    };
  }
  with_torch_errors([&] { graph_->replay(*current_stream(card_), std::move(begin)); });
}

void CardGraph::reset() {
  WithoutGil no_gil;
  if (const auto capture = std::exchange(capture_, nullptr)) {
    try {
      capture->end();
    } catch (const CardError&) {
      // The capture is given up anyway.
    }
  }
  stream_.reset();
  graph_.reset();
  accesses_.reset();
  last_replay_.reset();
  // A replay that is queued keeps the generators as they were.
  generators_ = std::make_shared<GraphGenerators>();
}

at::MempoolId_t CardGraph::pool() const {
  TORCH_CHECK(graph_ || capture_, "pool() was called on a graph without a preceding successful capture");
  return {0, pool_};
}

void CardGraph::debug_dump(const std::string& path) {
  TORCH_CHECK(debug_, "debug_dump() needs enable_debug_mode() before the capture");
  check_captured("debug_dump()");
  std::ofstream file(path);
  file << graph_->as_dot();
  file.close();
  TORCH_CHECK(file, "debug_dump: cannot write ", path);
}

void CardGraph::register_generator(const at::Generator& generator) {
  auto* known = at::check_generator<GeneratorImpl>(generator);  // raises for one of another device
  const std::lock_guard lock(known->mutex_);
  generators_->add(known->state());
}

std::size_t CardGraph::size() const {
  check_captured("The number of tasks");
  return graph_->size();
}

void register_graphs() {
  const auto name = c10::DeviceTypeName(device_type(), /*lower_case=*/false);
  // The registry would end the process for a second implementation for one device type.
  TORCH_CHECK(!at::GraphImplRegistry()->Has(name), "torch has graphs for the device ", name,
              " already, because another library has registered that device.");
  at::GraphImplRegistry()->Register(
      name, [](const at::GraphImplArgs& args) { return std::make_unique<CardGraph>(args); });
}

}  // namespace vdev
