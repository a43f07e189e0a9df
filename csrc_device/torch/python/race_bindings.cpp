// What vccl.sanitizer calls: switching the race detector on, and telling it how Python's threads are ordered.
#include <torch/csrc/utils/pybind.h>

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <utility>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/kernels/host_memory.hpp"
#include "csrc_device/torch/python/python_interpreter.hpp"
#include "csrc_device/torch/races/processes.hpp"
#include "csrc_device/torch/races/watch.hpp"

namespace py = pybind11;

namespace vdev {
namespace {

/// A recorded point, as an object of Python.
struct PointObject {
  races::Point point;
};

/// Collects the points of those who release a lock, for whoever takes it.
class OrderObject {
 public:
  void release() {
    const auto point = races::host_point();
    const std::lock_guard lock(mutex_);
    if (clock_.detector != point->detector) clock_ = sanitizer::VectorClock();  // of an earlier start
    clock_.detector = point->detector;
    clock_.join(*point);
  }
  void acquire() {
    const std::lock_guard lock(mutex_);
    races::host_waits_for(std::make_shared<const sanitizer::VectorClock>(clock_));
  }

 private:
  std::mutex mutex_;
  sanitizer::VectorClock clock_;
};

// Registered at the end of Python, this runs first at the end of the process, with its status.
void end_with(int status) {
  static int wanted;
  wanted = status;
  if (status == 0) return;
  on_exit(
      [](int ended, void*) {
        if (ended != 0) return;
        std::fflush(nullptr);
        _exit(wanted);
      },
      nullptr);
}

py::object dict_of(const races::SiteText& site, const races::LaneText* lane) {
  if (site.call.empty()) return py::none();
  py::dict dict;
  dict["op"] = site.call;
  dict["file"] = site.line.file;
  dict["line"] = site.line.number;
  dict["function"] = site.line.function;
  if (lane != nullptr) {
    dict["stream"] = lane->text;
    dict["is_host"] = lane->kind == races::LaneText::Kind::host;
    dict["is_operation"] = lane->kind == races::LaneText::Kind::operations;
    dict["card"] = lane->card;
    dict["stream_id"] = lane->stream;
  }
  return dict;
}

// Returns the calling line, as an action of a stream, or of the calling thread if `card` is -1.
py::object place(const char* call, int card, std::int64_t stream) {
  const auto lane = card < 0 ? races::host_lane() : races::lane_of(*vdev::card(card).stream(stream));
  const auto text = races::text_of_lane(lane);
  return dict_of(races::text_of_site(races::site_of(call)), &text);
}

py::dict dict_of(const races::Report& report) {
  using Kind = races::Report::Kind;
  py::dict dict;
  dict["what"] = report.kind == Kind::race        ? "race"
                 : report.kind == Kind::unwritten ? "unwritten"
                 : report.kind == Kind::gone      ? "gone"
                                                  : "useless";
  dict["first"] = dict_of(report.first, &report.first_lane);
  dict["second"] = dict_of(report.second, &report.second_lane);
  dict["first_writes"] = report.race.first.writes;
  dict["second_writes"] = report.race.second.writes;
  dict["allocated"] = dict_of(report.allocated, nullptr);
  dict["freed"] = dict_of(report.freed, nullptr);
  dict["was_freed"] = report.kind == Kind::race && report.race.freed != 0;
  dict["address"] = report.address;
  dict["shape"] = report.shape;
  dict["dtype"] = report.dtype;
  dict["waited_ns"] = report.waited_ns;
  if (report.first_process.empty()) return dict;
  dict["first_process"] = report.first_process;
  dict["first"]["rank"] = report.first_rank < 0 ? py::object(py::none()) : py::int_(report.first_rank);
  return dict;
}

void start(bool unwritten, bool useless, py::function report) {
  // Leaked, because a thread may report a race while the interpreter ends.
  auto* const function = new py::function(std::move(report));
  races::start({.unwritten = unwritten, .useless = useless}, [function](const races::Report& found) {
    if (!python_runs()) return;
    const py::gil_scoped_acquire gil;
    (*function)(dict_of(found));
  });
}

}  // namespace
}  // namespace vdev

void init_race_bindings(py::module_& module) {
  using vdev::PointObject;
  namespace races = vdev::races;
  py::class_<PointObject>(module, "_RacePoint", "What the race detector knows to come before something.");
  py::class_<vdev::OrderObject>(module, "_RaceOrder", "What comes before whoever takes a lock next.")
      .def(py::init<>())
      .def("release", &vdev::OrderObject::release)
      .def("acquire", &vdev::OrderObject::acquire);
  module.def("_races_end_with", &vdev::end_with, py::arg("status"),
             "Ends this process with that status if it would end with 0. Call this when Python ends.");
  module.def(
      "_races_start", &vdev::start, py::arg("unwritten"), py::arg("useless"), py::arg("report"),
      "Begins to look for races. `report` is called with a dict, within the call of the second access.");
  module.def("_races_stop", [] {
    races::stop();
    races::forget_host_memory();
  });
  module.def("_races_on", &races::is_on);
  module.def("_races_place", &vdev::place, py::arg("call"), py::arg("card"), py::arg("stream"));
  module.def("_races_point", [] { return PointObject{races::is_on() ? races::host_point() : nullptr}; });
  module.def("_races_wait", [](const PointObject& point) {
    if (races::is_on() && point.point) races::host_waits_for(point.point);
  });
  module.def(
      "_races_share",
      [](const at::Storage& storage, int rank) { return py::bytes(races::share(storage, rank)); },
      py::arg("storage"), py::arg("rank"),
      "Returns what the receiver of a storage gives to _races_receive. Call this in the thread that sends "
      "it.");
  module.def("_races_receive", [](const at::Storage& storage, const std::string& sent, int rank) {
    if (races::is_on()) races::receive(storage, sent, rank);
  });
  module.def("_races_shares_memory", [] { return races::is_on() && races::shares_memory(); });
  module.def("_races_publish_host", &races::publish_host, py::arg("channel"), py::arg("ends"));
  module.def("_races_wait_for_hosts", &races::wait_for_hosts, py::arg("channel"));
  module.def(
      "_races_judge_shared",
      [] {
        if (races::is_on() && races::shares_memory()) races::judge_shared();
      },
      "Reports races with other processes that could not be decided before.");
  module.def("_races_begin_thread", [](const PointObject& point, const std::string& name) {
    if (races::is_on()) races::begin_thread(point.point, name);
  });
  module.def("_races_end_thread", [] { return PointObject{races::end_thread()}; });
  module.def("_races_pointer_taken", [](const at::Tensor& tensor, const char* call) {
    if (races::is_on()) races::note_pointer_taken(tensor, call);
  });
}
