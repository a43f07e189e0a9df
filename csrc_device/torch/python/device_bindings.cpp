// The device part of vccl._C: what torch.vdev needs and torch.accelerator does not offer.
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ops/from_blob.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "base/clock.hpp"
#include "base/schedule.hpp"
#include "base/text.hpp"
#include "csrc_device/runtime/activity.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/environment.hpp"
#include "csrc_device/runtime/failure.hpp"
#include "csrc_device/runtime/host_sharing.hpp"
#include "csrc_device/runtime/process_sharing.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/runtime/schedule.hpp"
#include "csrc_device/torch/allocator.hpp"
#include "csrc_device/torch/checks/gpu_trace.hpp"
#include "csrc_device/torch/checks/sync_debug_mode.hpp"
#include "csrc_device/torch/device/generator.hpp"
#include "csrc_device/torch/errors.hpp"
#include "csrc_device/torch/facts/call_signature.hpp"
#include "csrc_device/torch/facts/operator_facts.hpp"
#include "csrc_device/torch/kernels/spoiled_tensors.hpp"
#include "csrc_device/torch/kernels/touched.hpp"
#include "csrc_device/torch/memory/cpu_allocator.hpp"
#include "csrc_device/torch/memory/host_allocator.hpp"
#include "csrc_device/torch/memory/process_sharing.hpp"
#include "csrc_device/torch/python/signal_handlers.hpp"
#include "csrc_device/torch/python/worker_gil.hpp"
#include "csrc_device/torch/races/watch.hpp"
#include "csrc_device/torch/streams.hpp"
#include "csrc_device/torch/tasks/launch.hpp"
#include "csrc_device/torch/threads/autograd_threads.hpp"
#include "include/vccl/device.hpp"

namespace py = pybind11;

namespace vdev {
namespace {

// Raises in a forked child of a process that had used a card. torch calls this before it first makes
// something on vdev.
void lazy_init() {
  if (in_bad_fork()) {
    throw BadFork();
  }
}

py::dict profile_of(const CardProperties& properties) {
  py::dict result;
  if (const auto* profile = properties.profile) {
    result["major"] = profile->major;
    result["minor"] = profile->minor;
    result["clock_rate"] = profile->clock_khz;
    result["memory_clock_rate"] = profile->memory_clock_khz;
    result["memory_bus_width"] = profile->memory_bus_bits;
    result["L2_cache_size"] = profile->l2_cache;
    result["max_threads_per_multi_processor"] = profile->threads_per_multiprocessor;
    result["shared_memory_per_multiprocessor"] = profile->shared_memory_of_multiprocessor;
  }
  return result;
}

// The failures of groups stay, because the program deals with them through the groups.
std::vector<std::string> clear_errors() {
  if (in_bad_fork()) throw BadFork();
  py::gil_scoped_release no_gil;
  with_torch_errors(&drain_used_cards);
  std::vector<std::string> texts;
  for (const auto& failure : program_errors().standing()) texts.push_back(text_of(failure->error()));
  program_errors().settle();
  return texts;
}

void bind_cards(py::module_& m) {
  m.def("device_count", &card_count);
  m.def("hide_cards", &hide_cards);
  m.def("current_device", &current_card);
  m.def("set_device", [](int index) { set_current_card(index); });
  m.def("exchange_device", [](int index) { return index < 0 ? -1 : set_current_card(index); });
  m.def("is_initialized", &any_card_used);
  m.def("environment_was_read", &environment_was_read);
  m.def("check_device", &check_card);
  m.def("is_device_used", &card_used);
  m.def("is_in_bad_fork", &in_bad_fork);
  m.def("lazy_init", &lazy_init);
  m.def(
      "shutdown",
      [] {
        stop_tracing_calls();
        settle_autograd_threads(std::chrono::seconds(2));
        shutdown();
      },
      py::call_guard<py::gil_scoped_release>());
  m.def("synchronize", [](int index) {
    py::gil_scoped_release no_gil;
    with_torch_errors([&] { synchronize_card(index); });
  });
  m.def("_stream_at", [](int index, std::uintptr_t handle) { return card(index).stream_at(handle)->id(); });
  m.def("_stream_priority", [](int index, std::int64_t id) {
    return id == 0 ? 0 : card(index).stream(id)->priority();  // makes no card for the default stream
  });
  m.def("drain_cards", [] {
    if (Queue::inside_task() || in_bad_fork()) return;
    py::gil_scoped_release no_gil;
    with_torch_errors(&drain_used_cards);
  });

  m.def("clear_errors", &clear_errors,
        "Waits for the streams of the cards, then forgets the failures of their tasks. Returns their texts.");

  py::class_<CardProperties>(m, "DeviceProperties")
      .def_readonly("name", &CardProperties::name)
      .def_readonly("total_memory", &CardProperties::total_memory)
      .def_readonly("multi_processor_count", &CardProperties::multi_processor_count)
      .def_readonly("physical_index", &CardProperties::physical_index)
      .def_property_readonly("profile", &profile_of,
                             "The figures of VDEV_PROFILE as a dict, and {} where it is not set.")
      .def("__repr__", [](const CardProperties& p) {
        return base::text("DeviceProperties(name='", p.name, "', total_memory=", p.total_memory >> 20,
                          "MB, multi_processor_count=", p.multi_processor_count,
                          ", physical_index=", p.physical_index, ")");
      });
  m.def("device_properties", [](int index) { return card(index).properties(); });
  m.def(
      "_card_users",
      [](int index) {
        check_card(index);
        py::list users;
        for (const CardUser& user : card(index).users())
          users.append(py::make_tuple(user.pid, user.foreign, user.name, user.bytes));
        return users;
      },
      "Returns (pid, whether that is of another pid namespace, command line, bytes) for each process that "
      "has "
      "memory of the physical card.");
}

// Tells the pinned allocator that a non-blocking copy uses the memory up to the present end of the current
// stream.
bool record_pinned_use(std::uintptr_t address) {
  return pinned_allocator()->record_event(reinterpret_cast<void*>(address), nullptr,
                                          current_torch_stream(current_card()));
}

void bind_memory(py::module_& m) {
  m.def("set_memory_limit", [](int index, std::size_t bytes) { card(index).allocator().set_limit(bytes); });
  m.def("record_pinned_use", &record_pinned_use);
}

py::dict cpu_memory_stats() {
  auto* memory = host_memory();
  const auto stats = memory ? memory->stats() : HostMemoryStats{};
  py::dict result;
  result["live_bytes"] = stats.live_bytes;
  result["live_blocks"] = stats.live_blocks;
  result["cached_bytes"] = stats.cached_bytes;
  result["capacity"] = stats.capacity;
  return result;
}

// Binds what vccl/_groups/cpu_memory.py uses.
void bind_cpu_memory(py::module_& m) {
  m.def("_share_cpu_memory", [](std::size_t min_bytes) {
    share_host_memory(min_bytes);
    cpu_allocator();
  });
  m.def("_stop_sharing_cpu_memory", &stop_sharing_host_memory);
  m.def("_is_sharing_cpu_memory", &is_sharing_host_memory);
  m.def("_has_shared_cpu_memory", [] { return host_memory() != nullptr; });
  m.def("_is_shared_cpu_memory", [](std::uintptr_t address) {
    return host_memory_of(reinterpret_cast<const void*>(address)) != nullptr;
  });
  m.def("_cpu_memory_stats", &cpu_memory_stats,
        "Figures of the CPU memory that is shared: live_bytes, live_blocks, cached_bytes, capacity.");
  m.def(
      "_empty_cpu_cache",
      [] {
        if (auto* memory = host_memory()) memory->empty_cache();
      },
      py::call_guard<py::gil_scoped_release>());
}

// The values of a SharedRange as Python pickles them. Torch's names for them (UntypedStorage._share_cuda_)
// are the handle, the storage's bytes, its offset in bytes, and the handle and offset of the counter.
using Message = std::tuple<py::bytes, std::uint64_t, std::uint64_t, std::uint32_t, std::uint32_t>;

SharedRange to_range(const Message& message) {
  const auto& [memory, bytes, offset, generation, slot] = message;
  return {memory, offset, bytes, slot, generation};
}

// Binds what vccl/vdev/process_sharing.py uses.
void bind_process_sharing(py::module_& m) {
  m.def(
      "_share_storage",
      [](const at::Storage& storage) {
        const auto range = share_storage(storage);
        return Message(py::bytes(range.memory), range.bytes, range.offset, range.generation, range.slot);
      },
      "Returns a message by which another process gets a storage over the same memory: the owner's name, the "
      "bytes, the offset, and the generation and slot of the block in the owner's ledger.");
  m.def(
      "_receive_storage", [](const Message& message) { return receive_storage(to_range(message)); },
      "Returns the storage that a message of _share_storage() names. Each message is to be received once.");
  m.def(
      "_decline_storage", [](const Message& message) { decline_range(to_range(message)); },
      "Receives a message of _share_storage() without using the memory.");
  m.def("_collect_shared_blocks", &collect_shared_blocks, py::call_guard<py::gil_scoped_release>());
}

void call_on_stream(const py::function& function) {
  const WorkerGil gil;
  try {
    function();
  } catch (py::error_already_set& error) {
    // Only the text is kept, because the exception may be raised or destroyed on a thread that does not hold
    // the GIL.
    throw CardError(base::text("A host function on a ", device_name(), " stream failed: ", error.what()));
  }
}

// Returns a function of Python as one that any thread may call, copy and destroy.
std::function<void()> shared_function(py::function function) {
  // The last owner may be the stream's worker, which does not hold the GIL.
  auto shared = std::shared_ptr<py::function>(new py::function(std::move(function)), [](py::function* last) {
    const WorkerGil gil;
    delete last;
  });
  return [shared = std::move(shared)] { call_on_stream(*shared); };
}

void bind_streams(py::module_& m) {
  // Tests use this to keep the current stream busy. One cycle is one nanosecond.
  m.def("sleep", [](std::int64_t cycles) {
    auto stream = current_stream(current_card());
    py::gil_scoped_release no_gil;
    stream->enqueue(
        task_without_memory([cycles] { std::this_thread::sleep_for(std::chrono::nanoseconds(cycles)); }));
  });
  m.def("launch_host_func", [](py::function function) {
    auto stream = current_stream(current_card());
    auto task = shared_function(std::move(function));
    if (races::is_on()) {
      task = [body = std::move(task), here = races::OnStream(*stream)] { here.run(body); };
    }
    py::gil_scoped_release no_gil;
    stream->enqueue(std::move(task));
  });
  m.def("launch_kernel", [](std::string name, const std::vector<at::Tensor>& reads,
                            const std::vector<at::Tensor>& writes, py::function function) {
    auto kernel = shared_function(std::move(function));
    py::gil_scoped_release no_gil;
    launch_kernel(std::move(name), reads, writes, std::move(kernel));
  });
}

// When the calling thread called begin_kernel(), and when that returned. Zeros if nobody records it.
struct GeneratedKernel {
  std::int64_t called = 0, begin = 0;
};
thread_local constinit GeneratedKernel generated_kernel;

// Makes a kernel that torch.compile has generated wait for its turn, and raises what run_at_call() would
// raise. Which arguments the kernel only writes is not known, so all of them count as read. Returns false,
// and does nothing, if the stream is captured: a kernel that runs at its call would be missing in the graph.
bool begin_kernel(int card, const std::string& name, const std::string& uses, const py::args& tensors) {
  if (is_captured(card)) [[unlikely]] {
    return false;
  }
  if (races::is_on()) [[unlikely]] {
    races::Tensors touched;
    for (std::size_t i = 0; i < uses.size(); ++i) touched.add(tensors[i].cast<at::Tensor>(), uses[i] == 'w');
    races::record_call(card, races::site_of(name.c_str()), touched);
  }
  const auto called = is_recording() ? base::monotonic_ns() : 0;
  wait_for_current_stream(card);
  if (SpoiledMemory::any()) [[unlikely]] {
    for (const auto& tensor : tensors) check_readable(tensor.cast<at::Tensor>());
  }
  if (called != 0) [[unlikely]] {
    generated_kernel = {called, base::monotonic_ns()};
  }
  return true;
}

// Records that the kernel has run, under its name.
void end_kernel(int card, const py::str& name) {
  const auto kernel = std::exchange(generated_kernel, {});
  if (kernel.begin == 0 || !is_recording()) [[likely]] {
    return;
  }
  const ActivityScope label([&] { return ActivityLabel{ActivityKind::kOperator, name}; });
  auto launch = make_launch(current_stream(card)->queue()->lane());
  launch->begin = kernel.called;
  launch->end = kernel.begin;
  record_run({std::move(launch), kernel.begin, base::monotonic_ns()});
}

// Returns a tensor of the same memory that does not keep it.
at::Tensor borrow(const at::Tensor& tensor) {
  return at::for_blob(tensor.mutable_data_ptr(), tensor.sizes())
      .strides(tensor.strides())
      .options(tensor.options())
      .target_device(tensor.device())
      .make_tensor();
}

void bind_waiting_calls(py::module_& m) {
  m.def("_set_sync_debug_mode", [](int mode) {
    TORCH_CHECK(mode >= 0 && mode <= 2, "invalid value of debug_mode, expected 0, 1 or 2, got ", mode);
    set_waiting_calls(static_cast<WaitingCalls>(mode));
  });
  m.def("_get_sync_debug_mode", [] { return static_cast<int>(waiting_calls()); });
}

// setattr() refuses types that are written in C.
void add_to_type(const py::type& type, const py::str& name, const py::object& value) {
  auto* object = reinterpret_cast<PyTypeObject*>(type.ptr());
  if (PyDict_SetItem(object->tp_dict, name.ptr(), value.ptr()) != 0) throw py::error_already_set();
  PyType_Modified(object);
}

void bind_kernels(py::module_& m) {
  m.def("_add_to_type", &add_to_type);
  m.def("begin_kernel", &begin_kernel);
  m.def("end_kernel", &end_kernel);
  m.def("_is_captured", &is_captured);
  m.def("_borrow", &borrow);
  m.def("_forget_calls", &forget_calls);
  m.def("_launch_counts", [] {
    py::dict counts;
    for (const auto* facts : known_facts())
      counts[py::str(c10::toString(facts->name))] =
          py::make_tuple(facts->tasks.load(), facts->at_calls.load());
    return counts;
  });
  m.def("_why_at_call",
        [](const std::string& name, const std::string& overload) -> std::optional<std::string> {
          const auto& facts =
              facts_of(c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str()));
          return facts.why_at_call == nullptr ? std::nullopt : std::optional<std::string>(facts.why_at_call);
        });
}

void bind_schedules(py::module_& m) {
  m.def("_start_schedule", [](const std::string& text, const std::string& turns) {
    with_torch_errors([&] { start_schedule(text, turns); });
  });
  m.def("_stop_schedule", &base::schedule::stop);
  m.def("_schedule_report", [] {
    const auto report = base::schedule::report();
    return py::make_tuple(report.steps, report.trace, report.taken);
  });
}

void bind_random(py::module_& m) {
  m.def("default_generator", [](int index) { return default_generator(index); });
}

}  // namespace
}  // namespace vdev

void init_device_bindings(py::module_& module) {
  vdev::let_signals_interrupt();
  vdev::bind_cards(module);
  vdev::bind_memory(module);
  vdev::bind_cpu_memory(module);
  vdev::bind_process_sharing(module);
  vdev::bind_streams(module);
  vdev::bind_waiting_calls(module);
  vdev::bind_kernels(module);
  vdev::bind_random(module);
  vdev::bind_schedules(module);
}
