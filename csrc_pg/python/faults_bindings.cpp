#include "csrc_pg/python/faults_bindings.hpp"

#include <unistd.h>

#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/stl.h>

#include "csrc_pg/operations/fault_handlers.hpp"
#include "faults/faults.hpp"
#include "faults/plan.hpp"
#include "faults/rule.hpp"
#include "faults/strikes.hpp"
#include "transport/variables.hpp"

namespace vccl {
namespace {

namespace py = pybind11;
using Ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;

/// Raises an exception of a type that Python finds by its name: "ValueError", "package.module.Type".
void raise_in_python(const std::string& type, const std::string& text) {
  const py::gil_scoped_acquire gil;
  const auto dot = type.rfind('.');
  const auto module = dot == std::string::npos ? "builtins" : type.substr(0, dot);
  const auto name = dot == std::string::npos ? type : type.substr(dot + 1);
  const py::object found = py::module_::import(module.c_str()).attr(name.c_str());
  PyErr_SetString(found.ptr(), text.c_str());
  throw py::error_already_set();
}

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

std::vector<faults::Range> ranges_of(const py::dict& rule, const char* key) {
  std::vector<faults::Range> ranges;
  for (const auto& [first, last] : rule[key].cast<Ranges>()) ranges.push_back({first, last});
  return ranges;
}

faults::Rule rule_of(const py::dict& given) {
  faults::Rule rule;
  rule.ranks = ranges_of(given, "rank");
  rule.steps = ranges_of(given, "step");
  rule.restarts = ranges_of(given, "restart");
  rule.host = given["host"].cast<std::string>();
  rule.group = given["group"].cast<std::string>();
  rule.op = given["op"].cast<std::string>();
  rule.phase = given["phase"].cast<std::string>();
  rule.n = given["n"].cast<std::uint64_t>();
  rule.every = given["every"].cast<std::uint64_t>();
  rule.probability = given["p"].cast<double>();
  rule.at = faults::moment_of(given["at"].cast<std::string>());
  rule.kind = faults::kind_of(given["kind"].cast<std::string>());
  rule.amount = given["amount"].cast<double>();
  rule.type = given["type"].cast<std::string>();
  return rule;
}

std::shared_ptr<faults::Plan> make_plan(const std::vector<py::dict>& given, std::uint64_t seed) {
  std::vector<faults::Rule> rules;
  for (const auto& rule : given) rules.push_back(rule_of(rule));
  return std::make_shared<faults::Plan>(std::move(rules), seed);
}

py::tuple struck() {
  std::uint64_t count = 0;
  py::list list;
  for (const auto& each : faults::struck(count)) {
    py::dict dict;
    dict["rank"] = each.rank;
    dict["kind"] = each.kind;
    dict["at"] = each.moment;
    dict["place"] = each.place;
    dict["group"] = each.group;
    dict["sequence"] = each.sequence;
    dict["step"] = each.step;
    dict["rule"] = each.rule;
    dict["time"] = each.time;
    dict["why_not"] = each.why_not;
    list.append(std::move(dict));
  }
  return py::make_tuple(std::move(list), count);
}

}  // namespace

void init_faults_bindings(py::module_& module) {
  const auto without_gil = py::call_guard<py::gil_scoped_release>();
  py::class_<faults::Plan, std::shared_ptr<faults::Plan>>(
      module, "_FaultPlan", "The rules of a plan of faults, and how often each has matched.")
      .def(py::init(&make_plan), py::arg("rules"), py::arg("seed"));
  py::class_<faults::Strikes, std::shared_ptr<faults::Strikes>>(module, "_FaultsOfPhase",
                                                                "The faults of a phase that has begun.")
      .def(
          "end", [](faults::Strikes& self) { self.strike(faults::Moment::after); },
          "Strikes with what is due after the phase.", without_gil);
  module.def(
      "_switch_faults_on",
      [](std::shared_ptr<faults::Plan> plan) {
        // Once, because threads that strike read the handlers without a lock.
        [[maybe_unused]] static const bool prepared = (prepare_faults(&raise_in_python), true);
        return faults::switch_on(std::move(plan));
      },
      py::arg("plan").none(true),
      "Makes the plan the one that holds from now on, or none with None. Returns the one before.");
  module.def(
      "_identify_for_faults",
      [](std::int64_t rank, std::int64_t restart, const std::string& log) {
        std::string host;
        try {
          host = read_variables().host_id;
        } catch (const std::exception&) {
          // The group reads the variables, too. It refuses them in its turn, and tells the other ranks.
        }
        if (host.empty()) host = host_name();
        faults::identify({rank, std::move(host), restart});
        faults::set_log(log);
      },
      py::arg("rank"), py::arg("restart"), py::arg("log"),
      "Tells the faults which rank this process is. Each fault is appended to the file `log`, unless that is "
      "\"\".");
  module.def("_set_step_of_faults", &faults::set_step, py::arg("step"),
             "Sets the number of the program's step.");
  module.def("_step_of_faults", &faults::step, "Returns the number of the program's step.");
  module.def(
      "_begin_phase_of_faults", [](const std::string& phase) { return faults::begin_phase(phase, "", ""); },
      py::arg("phase"), "Strikes at the begin of a phase. Returns its faults, or None.", without_gil);
  module.def("_struck_faults", &struck,
             "Returns the first faults that struck, as dicts, and the number of all.");
}

}  // namespace vccl
