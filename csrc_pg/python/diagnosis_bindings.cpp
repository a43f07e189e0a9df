#include "csrc_pg/python/diagnosis_bindings.hpp"
#include "base/program_files.hpp"

#include <torch/csrc/utils/pybind.h>

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <iterator>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <pybind11/stl.h>

#include "base/clock.hpp"
#include "base/fork.hpp"
#include "base/signals.hpp"
#include "csrc_pg/dumps/dumps.hpp"
#include "csrc_pg/dumps/stack_requests.hpp"
#include "csrc_pg/explanations/explanations.hpp"
#include "csrc_pg/explanations/other_hosts.hpp"
#include "diagnosis/job.hpp"

namespace vccl {
namespace {

namespace py = pybind11;

/// Returns what vccl._threads.stacks() says, or an empty text if Python cannot say it. The caller has the
/// GIL.
///
/// While Python ends, a thread that runs Python is ended wherever it waits for the GIL, and the objects of
/// C++ on its stack are destroyed. So there is none here that needs the GIL then.
std::string call_stacks() {
  PyObject* module = PyImport_ImportModule("vccl._threads");
  PyObject* text = module ? PyObject_CallMethod(module, "stacks", nullptr) : nullptr;
  Py_ssize_t length = 0;
  const char* characters = text ? PyUnicode_AsUTF8AndSize(text, &length) : nullptr;
  std::string result(characters ? characters : "", characters ? static_cast<std::size_t>(length) : 0);
  PyErr_Clear();
  Py_XDECREF(text);
  Py_XDECREF(module);
  return result;
}

/// Reads the stacks on a thread of its own, because nobody can wait for Python's lock for a limited time.
struct StackReading {
  std::mutex mutex;
  std::condition_variable changed;
  bool under_way = false;  // at most one thread waits; it ends when it has had the lock
  std::string text;

  void start() {
    const base::SignalsBlocked blocked;
    std::thread([this] {
      ::pthread_setname_np(::pthread_self(), "vccl stacks");
      const PyGILState_STATE before = PyGILState_Ensure();
      std::string read = call_stacks();
      PyGILState_Release(before);
      const std::lock_guard lock(mutex);
      text = std::move(read);
      under_way = false;
      changed.notify_all();
    }).detach();
    under_way = true;
  }
};

std::optional<std::string> read_stacks(std::chrono::milliseconds patience) {
  static base::OnePerProcess<StackReading> one;
  StackReading& reading = one.get();
  std::unique_lock lock(reading.mutex);
  try {
    if (!Py_IsInitialized()) return std::string();
    if (!reading.under_way) reading.start();
  } catch (const std::system_error&) {
    return std::string();  // the system has no thread to give, and nothing is known
  }
  if (!reading.changed.wait_for(lock, patience, [&] { return !reading.under_way; })) return std::nullopt;
  return reading.text;
}

/// Makes this process answer requests for its stacks. Call this with the GIL.
void serve_stacks() {
  const int memory = prepare_stack_answers(&read_stacks);
  if (memory < 0) return;
  py::module_::import("faulthandler")
      .attr("register")(lockless_stack_signal(), py::arg("file") = memory, py::arg("all_threads") = true);
}

double seconds_since(std::int64_t then_ns, std::int64_t now_ns) {
  return static_cast<double>(std::max<std::int64_t>(now_ns - then_ns, 0)) * 1e-9;
}

py::list list_of(const ThreadStack& stack) {
  py::list frames;
  for (const Frame& frame : stack.frames) {
    py::dict entry;
    entry["file"] = frame.file;
    entry["line"] = frame.line;
    entry["function"] = frame.function;
    frames.append(entry);
  }
  return frames;
}

std::string state_of(const JobRank& rank) {
  const auto open = [](const auto& group) { return group.group.open != 0; };
  if (rank.activity == Activity::sleeps) {
    if ((rank.stacks && rank.stacks->waits) || (!rank.stacks && !rank.calls.empty())) return "waits";
    if (std::ranges::none_of(rank.snapshot.groups, open)) return "left";
  }
  return name_of(rank.activity);
}

py::dict dict_of(const JobRank& rank, const Job& job, std::int64_t now) {
  py::dict dict;
  dict["rank"] = rank.rank;
  dict["pid"] = rank.pid;
  dict["far"] = rank.far;
  dict["host"] = rank.host;
  dict["card"] = rank.card < 0 ? py::object(py::none()) : py::int_(rank.card);
  dict["state"] = state_of(rank);
  dict["program"] = rank.program;
  for (const char* key : {"call", "group", "since_s"}) dict[key] = py::none();
  const auto wait = std::ranges::find(job.waits, rank.rank, &JobWait::rank);
  if (!rank.calls.empty()) {
    const PendingCall& call = rank.calls.front();
    dict["call"] = call.text;
    dict["group"] = job.groups[call.group].name;
    dict["since_s"] = seconds_since(call.created_ns, now);
  } else if (wait != job.waits.end()) {  // in a call of which the recorder has no entry
    dict["call"] = wait->call;
    if (!wait->group.empty()) dict["group"] = wait->group;
    dict["since_s"] = seconds_since(wait->since_ns, now);
  }
  dict["operations"] = rank.snapshot.recorded;
  dict["faults"] = rank.snapshot.process.faults;
  dict["last_fault"] = get_text(rank.snapshot.process.last_fault);
  const auto* stack = rank.stacks ? telling_stack(*rank.stacks) : nullptr;
  dict["stack"] = stack ? list_of(*stack) : py::list();
  dict["python_lock"] = rank.stacks ? py::object(py::bool_(rank.stacks->lock_held)) : py::none();
  return dict;
}

py::dict progress_dict(const JobGroup& group, std::size_t kind) {
  py::dict dict;
  for (const auto& [rank, progress] : group.progress) {
    py::dict entry;
    entry["called"] = progress.enqueued[kind];
    entry["started"] = progress.started[kind];
    entry["completed"] = progress.completed[kind];
    dict[py::str(std::to_string(rank))] = entry;
  }
  return dict;
}

py::dict calls_dict(const JobGroup& group) {
  constexpr const char* kNames[] = {"broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce"};
  static_assert(std::size(kNames) == kCountedCalls, "a name for each CountedCall but none");
  py::dict dict;
  for (const auto& [rank, progress] : group.progress) {
    py::dict entry;
    for (std::size_t i = 0; i < kCountedCalls; ++i) entry[kNames[i]] = progress.counts[i];
    dict[py::str(std::to_string(rank))] = entry;
  }
  return dict;
}

py::list left_list(const JobGroup& group) {
  py::list left;
  for (const auto& [rank, open] : group.open)
    if (!open) left.append(rank);
  return left;
}

py::dict dict_of(const JobGroup& group) {
  py::dict dict;
  dict["name"] = group.name;
  dict["description"] = group.description;
  dict["ranks"] = group.ranks;
  dict["sequence"] = progress_dict(group, 0);
  dict["messages"] = progress_dict(group, 1);
  dict["calls"] = calls_dict(group);
  dict["left"] = left_list(group);
  return dict;
}

py::dict dict_of(const JobWait& wait, std::int64_t now) {
  py::dict dict;
  dict["rank"] = wait.rank;
  dict["call"] = wait.call;
  dict["group"] = wait.group;
  dict["for"] = wait.awaited;
  dict["since_s"] = seconds_since(wait.since_ns, now);
  return dict;
}

/// Returns the dump of what was read of the rank's recorder, as JSON.
std::string dump_of(const JobRank& rank) {
  return json_of(rank.snapshot, dump_options(get_text(rank.snapshot.process.backend)));
}

py::dict dict_of(const Job& job, std::int64_t now, bool dumps) {
  py::dict dict;
  dict["id"] = job.id;
  dict["world_size"] = job.size;
  py::list ranks, groups, waits, findings, unknown;
  for (const auto& [number, rank] : job.ranks) {
    py::dict entry = dict_of(rank, job, now);
    if (dumps) entry["dump"] = dump_of(rank);
    ranks.append(entry);
  }
  for (const JobGroup& group : job.groups) groups.append(dict_of(group));
  for (const JobWait& wait : job.waits) waits.append(dict_of(wait, now));
  for (const Finding& finding : job.findings) {
    py::dict entry;
    entry["kind"] = finding.kind;
    entry["culprits"] = finding.culprits;
    entry["text"] = finding.text;
    findings.append(entry);
  }
  for (const auto& [host, unknown_ranks, silent] : job.unknown) {
    py::dict entry;
    entry["host"] = host;
    entry["ranks"] = unknown_ranks;
    entry["silent"] = silent;
    unknown.append(entry);
  }
  dict["ranks"] = ranks;
  dict["unknown"] = unknown;
  dict["groups"] = groups;
  dict["waits"] = waits;
  dict["diagnosis"] = findings;
  return dict;
}

py::dict dict_of(const Diagnosis& diagnosis, bool dumps) {
  using std::chrono::system_clock;
  const auto now = base::monotonic_ns();
  py::list jobs, unreadable;
  for (const Job& job : diagnosis.jobs) jobs.append(dict_of(job, now, dumps));
  for (const auto& [pid, text] : diagnosis.unreadable) {
    py::dict entry;
    entry["pid"] = pid;
    entry["text"] = text;
    unreadable.append(entry);
  }
  py::dict dict;
  dict["version"] = 1;
  dict["time"] = std::chrono::duration<double>(system_clock::now().time_since_epoch()).count();
  dict["host"] = py::module_::import("socket").attr("gethostname")();
  dict["jobs"] = jobs;
  dict["unreadable"] = unreadable;
  return dict;
}

}  // namespace

void init_diagnosis_bindings(py::module_& module) {
  explain_waits_by_diagnosis();
  module.def("_serve_stacks", &serve_stacks,
             "Makes this process answer other processes of the user that ask for its Python stacks.");
  module.def("_set_library_folders", &base::set_library_folders, py::arg("folders"),
             "Names the folders whose files are not the user's own code in a diagnosis.");
  module.def(
      "_diagnose",
      [](std::int64_t stacks_within_ms, bool dumps, bool others) {
        Diagnosis diagnosis;
        {
          const py::gil_scoped_release without_gil;
          auto options = diagnosis_options();
          options.stack_patience = std::chrono::milliseconds(stacks_within_ms);
          if (others) options.others = &other_hosts();
          diagnosis = diagnose(options);
        }
        return dict_of(diagnosis, dumps);
      },
      py::arg("stacks_within_ms"), py::arg("dumps") = false, py::arg("others") = false,
      "What the ranks of all jobs of this user do, who waits for whom, and who is to blame, as a dict in the "
      "form of `python -m vccl.top --json`. Ranks that stand are asked for their stacks, which takes up to "
      "the given time; 0 asks nobody. With `dumps`, each rank also has what was read of its recorder, as the "
      "JSON of a dump. With `others`, other hosts are asked about the ranks that are not here.");
}

}  // namespace vccl
