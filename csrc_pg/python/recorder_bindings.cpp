#include "csrc_pg/python/recorder_bindings.hpp"

#include <pybind11/chrono.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "csrc_pg/dumps/dumps.hpp"
#include "csrc_pg/dumps/own_spool.hpp"
#include "recorder/flight_reader.hpp"
#include "recorder/spool.hpp"

namespace vccl {
namespace {

namespace py = pybind11;

/// What was read of one process, without the GIL.
struct ReadRecorder {
  FoundRecorder found;
  FlightSnapshot snapshot;
  std::string dump;
};

std::vector<ReadRecorder> read_recorders() {
  std::vector<ReadRecorder> all;
  for (auto& found : find_flight_recorders()) {
    ReadRecorder read{std::move(found), {}, {}};
    if (read.found.reader) {
      try {
        read.snapshot = read.found.reader->read();
        read.dump = json_of(read.snapshot, dump_options(get_text(read.snapshot.process.backend)));
      } catch (const FlightRefused& refused) {  // it was damaged meanwhile
        read.found.problem = refused.what();
      }
    }
    all.push_back(std::move(read));
  }
  return all;
}

py::dict dict_of(const ReadRecorder& read) {
  py::dict dict;
  dict["pid"] = read.found.pid;
  dict["holder"] = read.found.holder;
  dict["alive"] = read.found.alive;
  dict["version"] = read.found.version;
  dict["problem"] = read.found.problem;
  const auto& process = read.snapshot.process;
  dict["rank"] = process.rank;
  dict["size"] = process.size;
  dict["job"] = get_text(process.job);
  dict["host"] = get_text(process.host);
  dict["backend"] = get_text(process.backend);
  dict["program"] = get_text(process.program);
  dict["recorded"] = read.snapshot.recorded;
  dict["unrecorded"] = read.snapshot.unrecorded;
  dict["torn"] = read.snapshot.torn;
  dict["damaged"] = read.snapshot.damaged;
  dict["dump"] = read.dump;
  return dict;
}

}  // namespace

void init_recorder_bindings(py::module_& module) {
  module.def(
      "_dump_flight_recorder",
      [](bool operations, bool stacks, bool only_active) {
        std::string dump;
        {
          const py::gil_scoped_release without_gil;
          dump = dump_pickle(operations, stacks, only_active);
        }
        return py::bytes(dump);
      },
      py::arg("operations"), py::arg("stacks"), py::arg("only_active"),
      "The dump of this process's flight recorder as a pickle, in the form of torch 2.13's dumps.");
  module.def(
      "_dump_flight_recorder_json",
      [](bool operations, bool only_active) {
        std::string dump;
        {
          const py::gil_scoped_release without_gil;
          dump = dump_json(operations, only_active);
        }
        return py::bytes(dump);
      },
      py::arg("operations"), py::arg("only_active"), "The same as JSON, without stacks.");
  module.def(
      "_begin_record",
      [](const std::string& directory, bool hashes) {
        try {
          const py::gil_scoped_release without_gil;
          begin_record(directory, hashes);
        } catch (const SpoolRefused& refused) {
          throw std::runtime_error(refused.what());
        }
      },
      py::arg("directory"), py::arg("hashes"), "Begins to record what the groups of this process do.");
  module.def("_end_record", &end_record, py::arg("patience"), py::call_guard<py::gil_scoped_release>(),
             "Ends the record once its operations are over, or the patience has passed.");
  module.def(
      "_flight_recorders",
      [] {
        std::vector<ReadRecorder> all;
        {
          const py::gil_scoped_release without_gil;
          all = read_recorders();
        }
        py::list list;
        for (const auto& read : all) list.append(dict_of(read));
        return list;
      },
      "What the flight recorders of all processes of this user say, each as a dict. `dump` is JSON, and "
      "empty "
      "where `problem` says why a recorder cannot be read.");
}

}  // namespace vccl
