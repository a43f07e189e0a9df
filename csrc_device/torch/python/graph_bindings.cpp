// Graphs for Python: what torch.vdev and, for cards in pose, torch.cuda are made of.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/torch/device/card_graph.hpp"
#include "csrc_device/torch/streams.hpp"

namespace py = pybind11;

namespace vdev {
namespace {

at::GraphCaptureMode mode_named(const std::string& name) {
  if (name == "global") {
    return at::GraphCaptureMode::Global;
  }
  if (name == "thread_local") {
    return at::GraphCaptureMode::ThreadLocal;
  }
  TORCH_CHECK(name == "relaxed",
              "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got ", name);
  return at::GraphCaptureMode::Relaxed;
}

void capture_begin(CardGraph& graph, const std::optional<at::MempoolId_t>& pool, const std::string& mode) {
  graph.capture_begin(pool.value_or(at::MempoolId_t(0, 0)), mode_named(mode));
}

bool is_current_stream_capturing() {
  const int card = current_card();
  return card_used(card) && is_captured(card);
}

}  // namespace
}  // namespace vdev

void init_graph_bindings(py::module_& m) {
  using vdev::CardGraph;
  py::class_<CardGraph>(m, "Graph")
      .def(py::init([](bool keep_graph) {
             return std::make_unique<CardGraph>(at::GraphImplArgs{.keep_graph = keep_graph});
           }),
           py::arg("keep_graph") = false)
      .def("capture_begin", &vdev::capture_begin, py::arg("pool") = py::none(),
           py::arg("capture_error_mode") = "global")
      .def("capture_end",
           [](CardGraph& graph) {
             torch::PyWarningHandler warns_in_python;
             graph.capture_end();
           })
      .def("instantiate", &CardGraph::instantiate)
      .def("replay", &CardGraph::replay)
      .def("reset", &CardGraph::reset)
      .def("pool", &CardGraph::pool)
      .def("enable_debug_mode", &CardGraph::enable_debug_mode)
      .def("debug_dump", &CardGraph::debug_dump, py::arg("path"))
      .def("register_generator_state", &CardGraph::register_generator, py::arg("generator"))
      .def("__len__", &CardGraph::size);
  m.def("graph_pool_handle", [] { return at::MempoolId_t(0, vdev::new_private_pool()); });
  m.def("is_current_stream_capturing", &vdev::is_current_stream_capturing);
  m.def("register_graphs", &vdev::register_graphs);
}
