// The process group in Python: vccl._C.ProcessGroupVccl.
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include <pybind11/chrono.h>
#include <pybind11/stl.h>

#include "base/periods.hpp"
#include "csrc_device/runtime/environment.hpp"
#include "csrc_pg/arguments/torch_types.hpp"
#include "csrc_pg/benchmark/host_barrier.hpp"
#include "csrc_pg/collectives/algorithm.hpp"
#include "csrc_pg/collectives/content.hpp"
#include "csrc_pg/collectives/selector.hpp"
#include "csrc_pg/communicators/abort_when_interrupted.hpp"
#include "csrc_pg/communicators/communicators.hpp"
#include "csrc_pg/communicators/numeric_addresses.hpp"
#include "csrc_pg/operations/program_checks.hpp"
#include "csrc_pg/process_group/process_group.hpp"
#include "csrc_pg/python/blocked_threads.hpp"
#include "csrc_pg/python/diagnosis_bindings.hpp"
#include "csrc_pg/python/faults_bindings.hpp"
#include "csrc_pg/python/recorder_bindings.hpp"
#include "csrc_pg/python/symmetric_bindings.hpp"
#include "csrc_pg/symmetric/signal_task.hpp"
#include "transport/deadlock_watch.hpp"
#include "transport/libraries.hpp"
#include "transport/variables.hpp"

namespace py = pybind11;
using vccl::ProcessGroupVccl;

namespace {

c10::intrusive_ptr<ProcessGroupVccl> make(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    const c10::intrusive_ptr<vccl::Options>& options,
    const std::vector<c10::intrusive_ptr<ProcessGroupVccl>>& relatives) {
  return c10::make_intrusive<ProcessGroupVccl>(
      store, rank, size, options ? options : c10::make_intrusive<vccl::Options>(), relatives);
}

// Options have a property for each backend that a group can stand for.
template <vccl::StandsFor other>
bool stands_for(const vccl::Options& options) {
  return options.stands_for == other;
}
template <vccl::StandsFor other>
void stand_for(vccl::Options& options, bool wanted) {
  options.stands_for = wanted ? other : vccl::StandsFor::vccl;
}

py::object extras_of(const vccl::Options& options) {
  return options.extras ? *static_cast<const py::object*>(options.extras.get()) : py::none();
}

// The last copy of the options may be released by a thread that does not hold the GIL, or once the
// interpreter has ended: then the object is left to the end of the process.
void set_extras(vccl::Options& options, py::object extras) {
  options.extras = std::shared_ptr<py::object>(new py::object(std::move(extras)), [](py::object* kept) {
    if (Py_IsInitialized() == 0) return;
    const py::gil_scoped_acquire gil;
    delete kept;
  });
}

vccl::HostBarrier make_barrier(const py::buffer& page, int size) {
  const py::buffer_info info = page.request(true);
  if (info.size * info.itemsize < py::ssize_t(sizeof(vccl::HostBarrier::Words)) ||
      reinterpret_cast<std::uintptr_t>(info.ptr) % alignof(vccl::HostBarrier::Words) != 0)
    throw py::value_error("a barrier needs a page of memory that all ranks map");
  return {*static_cast<vccl::HostBarrier::Words*>(info.ptr), size};
}

std::int64_t content_of(const at::Tensor& tensor) {
  const auto on_cpu = tensor.detach().to(at::kCPU).contiguous();
  const auto dtype = vccl::to_dtype(on_cpu.scalar_type(), "_content_of");
  return static_cast<std::int64_t>(
      vccl::content_of(dtype, on_cpu.const_data_ptr(), static_cast<std::size_t>(on_cpu.numel())));
}

// Passes the barrier. Signal handlers run meanwhile.
void pass(vccl::HostBarrier& barrier, double look, double timeout) {
  using Seconds = std::chrono::duration<double>;
  const auto as_wait = [](double seconds) {
    return std::chrono::duration_cast<vccl::Clock::duration>(Seconds(seconds));
  };
  const auto deadline = vccl::Clock::now() + as_wait(timeout);
  py::gil_scoped_release without_gil;
  const std::uint32_t turn = barrier.arrive();
  auto spin = as_wait(look);
  auto next = vccl::Clock::now() + base::kInterruptionPeriod;
  for (; !barrier.await(turn, spin, std::min(deadline, next)); next += base::kInterruptionPeriod) {
    spin = {};
    py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (vccl::Clock::now() >= deadline) {
      PyErr_SetString(PyExc_TimeoutError, "some rank did not come to the barrier in time");
      throw py::error_already_set();
    }
  }
}

}  // namespace

void init_process_group_bindings(py::module_& module) {
  vccl::let_interruptions_reach_transport();
  vccl::let_watch_ask_for_blocked_threads();
  init_symmetric_bindings(module);
  if (vdev::pose() == vdev::Pose::cuda) vccl::also_read_nccl_variables();
  const auto without_gil = py::call_guard<py::gil_scoped_release>();

  auto group = py::class_<ProcessGroupVccl, c10d::Backend, c10::intrusive_ptr<ProcessGroupVccl>>(
      module, "ProcessGroupVccl",
      "Collectives over virtual cards and CPU tensors. Made by "
      "torch.distributed.init_process_group('vccl').");

  module.def(
      "_checks_content", [] { return vccl::program_checks().content; },
      "Returns whether VCCL_CHECK asks for content. Raises for a value that is not allowed.");
  module.def("_content_of", &content_of, py::arg("tensor"), without_gil,
             "Returns a hash of a tensor's elements as an int64. All NaNs count as equal.");

  py::class_<vccl::Options, c10d::Backend::Options, c10::intrusive_ptr<vccl::Options>>(
      group, "Options", "What init_process_group and new_group take as pg_options.")
      .def(py::init([](bool is_high_priority_stream) {
             auto options = c10::make_intrusive<vccl::Options>();
             options->is_high_priority_stream = is_high_priority_stream;
             return options;
           }),
           py::arg("is_high_priority_stream") = false)
      .def_readwrite("is_high_priority_stream", &vccl::Options::is_high_priority_stream,
                     "Whether the communicator's stream is one of high priority.")
      .def_readwrite(
          "blocking_wait", &vccl::Options::blocking_wait,
          "Whether wait(), and calls without a Work, block the host until the operation has ended.")
      .def_property(
          "_abort_after_failure", [](const vccl::Options& self) { return self.after_failure.abort_group; },
          [](vccl::Options& self, bool wanted) { self.after_failure.abort_group = wanted; },
          "Whether a failed operation aborts the group.")
      .def_property(
          "_end_after_failure", [](const vccl::Options& self) { return self.after_failure.end_process; },
          [](vccl::Options& self, bool wanted) { self.after_failure.end_process = wanted; },
          "Whether a failed operation ends the process.")
      .def_property(
          "group_desc", [](const vccl::Options& self) { return self.group_desc; },
          [](vccl::Options& self, const std::string& description) { self.group_desc = description; },
          "How the group is described, which errors call it by where it is not empty.")
      .def_property("_stands_for_nccl", &stands_for<vccl::StandsFor::nccl>, &stand_for<vccl::StandsFor::nccl>,
                    "Whether the group refuses what NCCL refuses, if VCCL_STRICT is unset.")
      .def_property("_stands_for_gloo", &stands_for<vccl::StandsFor::gloo>, &stand_for<vccl::StandsFor::gloo>,
                    "Whether the group serves the cards of a group of gloo.")
      .def_readwrite("_call", &vccl::Options::call, "The call that makes the group: \"new_group\".")
      .def_readwrite("_origin", &vccl::Options::origin, "_id of a group that all ranks are in, or \"\".")
      .def_property("_extras", &extras_of, &set_extras,
                    "Fields that exist in Python alone, or None. Copies share the object.")
      .def("__copy__", [](const vccl::Options& self) { return self.copy(); })
      .def(
          "__deepcopy__", [](const vccl::Options& self, const py::dict&) { return self.copy(); },
          py::arg("memo"));

  group
      .def(py::init(&make), py::arg("store"), py::arg("rank"), py::arg("size"),
           py::arg("options") = py::none(),
           py::arg("relatives") = std::vector<c10::intrusive_ptr<ProcessGroupVccl>>(), without_gil)
      .def_property_readonly("_group_name", &ProcessGroupVccl::group_name, "What errors call the group.")
      .def_property_readonly("_is_strict", &ProcessGroupVccl::is_strict,
                             "Whether the group refuses what NCCL refuses (VCCL_STRICT).")
      .def_property_readonly("_id", &ProcessGroupVccl::id,
                             "A random text that the ranks of this group have in common.")
      .def("_agree_on_call", &ProcessGroupVccl::agree_on_call, py::arg("kind"), py::arg("call"),
           py::arg("lists"),
           "Raises DistBackendError if this rank's n-th call of `kind` is another one than that of other "
           "ranks. `lists` are the global ranks of the groups that the call makes.",
           without_gil)
      .def(
          "_ranks_text",
          [](const ProcessGroupVccl& group, const std::vector<int>& ranks) {
            return group.names().ranks(ranks);
          },
          py::arg("ranks"), "Returns what texts call ranks of this group: \"ranks 2, 3 (0, 1 of mesh_tp)\".")
      .def("_ended_ranks", &ProcessGroupVccl::ended_ranks,
           "{rank: text} of the ranks of this group that are known to have died or left.", without_gil)
      .def_property_readonly("options", &ProcessGroupVccl::options, "The options the group was made with.")
      .def("get_error", &ProcessGroupVccl::getError, "Whether and how the group has failed, as an ErrorType.",
           without_gil)
      .def("comm_split_count", &ProcessGroupVccl::split_count,
           "How often the group was split. torch.distributed.split_group asks for it, and describes the "
           "group it makes with it.")
      .def(
          // torch calls this on the ranks that are not in a new group, because NCCL needs it.
          "perform_nocolor_split", [](const ProcessGroupVccl&, const at::Device&) {}, py::arg("device"),
          "Does nothing: a new group of vccl takes its own ranks alone.")
      .def("_count_split", &ProcessGroupVccl::count_split, py::arg("name"),
           "Counts a split. Further calls with the same name count once.")
      .def("_is_initialized", &ProcessGroupVccl::is_initialized,
           "Whether the group has a communicator of a card, or has sent messages between cards.")
      .def("_add_ephemeral_timeout", &ProcessGroupVccl::addEphemeralTimeout, py::arg("timeout"), without_gil,
           "Makes the timeouts of operations longer until the next one has ended.")
      .def(
          "_set_enable_nan_check", &ProcessGroupVccl::check_nan, py::arg("enable_nan_check"),
          "Whether NaN and infinity in the inputs of later operations is an error. At first, VCCL_CHECK says "
          "it.")
      .def_static("_verify_work_timeout", &ProcessGroupVccl::verify_work_timeout, py::arg("work"),
                  py::arg("timeout"),
                  "Whether the operation of `work` was launched with this timeout. TypeError for a Work of "
                  "another backend.")
      .def("_enable_timing", &ProcessGroupVccl::enableCollectivesTiming,
           "Does what _enable_collectives_timing() of the process group does.")
      .def_property_readonly("_timing", &ProcessGroupVccl::timing,
                             "Whether the program has asked for the times of operations.")
      .def("_cancel_coalescing", &ProcessGroupVccl::cancel_coalescing,
           "Ends what the calling thread's startCoalescing() began, and launches nothing. Does nothing "
           "without "
           "it.",
           without_gil)
      .def("_keep", &ProcessGroupVccl::keep, py::arg("backend"),
           "Keeps another backend until this group is destroyed, and then releases it without the GIL.")
      .def("_set_default_timeout", &ProcessGroupVccl::setTimeout, py::arg("timeout"), without_gil)
      .def("abort", &ProcessGroupVccl::abort,
           "Frees whoever waits in this group, on every rank; the group stays failed. From any thread.",
           without_gil)
      .def("shutdown", &ProcessGroupVccl::shutdown, "Lets what was launched end, and leaves the group.",
           without_gil);

  py::class_<vccl::HostBarrier>(module, "_HostBarrier",
                                "A barrier of `size` processes that map the same page; zeros at first.")
      .def(py::init(&make_barrier), py::arg("page"), py::arg("size"), py::keep_alive<1, 2>())
      .def("wait", &pass, py::arg("look"), py::arg("timeout"),
           "Returns once every process has called it as often as this one. Looks for the others for `look` "
           "seconds and sleeps then. TimeoutError after `timeout` seconds.");

  vccl::init_recorder_bindings(module);
  vccl::init_faults_bindings(module);
  vccl::init_diagnosis_bindings(module);
  module.def(
      "_shutdown_process_groups",
      [](std::chrono::milliseconds patience) {
        vccl::symmetric::finish_signals(patience);
        ProcessGroupVccl::shutdown_all(patience);
      },
      py::arg("patience"),
      "Shuts down every group of the process, waiting at most `patience` (timedelta) for each.", without_gil);
  module.def(
      "_algorithms",
      [] {
        std::set<std::pair<std::string, std::string>> pairs;
        for (const auto& algorithm : vccl::algorithms())
          pairs.emplace(algorithm.name, vccl::to_string(algorithm.collective));
        return pairs;
      },
      "The algorithms there are: {(name, collective)}, as VCCL_ALGO names them.");
  module.def(
      "_capable_families",
      [](const std::string& collective, std::size_t bytes, int ranks, bool mapped, bool across) {
        using Kind = vccl::MemoryKind;
        const Kind here = mapped ? Kind::mapped : Kind::staged;
        const Kind there = mapped ? Kind::mapped_across : Kind::staged_across;
        return vccl::capable_families(collective, bytes, ranks, across ? there : here);
      },
      py::arg("collective"), py::arg("bytes"), py::arg("ranks"), py::arg("mapped"), py::arg("across"),
      "The families of algorithms that can do the collective on one host, or `across` several, with equal "
      "chunks "
      "of float32 elements and `bytes` bytes in the longest buffer.");
  module.def(
      "_waits", [] { return vccl::DeadlockWatch::of_this_process().waits(); },
      "What threads of this process wait for in collectives, each as a text with the ranks that are missing.",
      without_gil);
  module.def(
      "_ras_address", &vccl::read_ras_address,
      "VCCL_RAS_ADDR, or NCCL_RAS_ADDR in pose; empty if neither is set. ValueError for a wrong value.");
  module.def(
      "_is_strict",
      [](bool by_default) { return vccl::with_torch_errors([&] { return vccl::read_strict(by_default); }); },
      py::arg("by_default"),
      "Whether VCCL_STRICT asks groups to refuse what NCCL refuses. ValueError for a wrong value.");
  module.def("_is_cpu_sharing_asked_for", &vccl::read_share_cpu,
             "Whether VCCL_SHARE_CPU asks for it. Raises for a value that is not allowed.");
  module.def("_groups_that_stage_cpu_tensors", &vccl::Communicators::that_stage_cpu_tensors,
             "How many groups were made before this process shared CPU memory, and are still there.");
  module.def("_set_zmq_library_path", &vccl::set_zmq_library_path, py::arg("path"),
             "Names the libzmq to load where VCCL_ZMQ_LIBRARY does not; it is loaded when two ranks are on "
             "two hosts.");
  module.def("_set_crypto_library_path", &vccl::set_crypto_library_path, py::arg("path"),
             "Names the libcrypto to load where neither VCCL_CRYPTO_LIBRARY nor the system does.");
  module.def("_write_addresses_as_numbers", &vccl::write_addresses_as_numbers,
             "Keeps torch's sockets from asking a name server. Returns whether torch's calls were found.");
}
