#include "csrc_pg/python/blocked_threads.hpp"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <pybind11/pybind11.h>

#include "csrc_device/runtime/host_waits.hpp"
#include "csrc_pg/handles/callback_pool.hpp"
#include "transport/deadlock_watch.hpp"

namespace py = pybind11;

namespace vccl {
namespace {

/// Asks Python whether its other threads are blocked. The watch's thread calls this. It holds no lock that a
/// holder of the GIL might wait for.
bool python_is_blocked(const std::vector<pthread_t>& blocked) {
  if (!Py_IsInitialized()) return false;
  py::gil_scoped_acquire gil;
  try {
    py::list idents;  // threading.get_ident()
    for (const pthread_t thread : blocked) idents.append(static_cast<std::uint64_t>(thread));
    return py::module_::import("vccl._threads").attr("all_blocked")(idents).cast<bool>();
  } catch (const std::exception&) {
    return false;  // not certain
  }
}

std::optional<std::uint64_t> blocked_threads(std::span<const pthread_t> waiting) {
  // The waits are read first, because a wait that ends after this has another number the next time.
  auto in_runtime = vdev::waiting_threads();
  std::vector<pthread_t> blocked(waiting.begin(), waiting.end());
  for (const auto& [thread, wait] : in_runtime) blocked.push_back(thread);
  const bool has_callbacks = !wait_for_callbacks(std::chrono::milliseconds(0));
  if (has_callbacks || !vdev::queues_stand_still(blocked) || !python_is_blocked(blocked)) return std::nullopt;

  std::sort(in_runtime.begin(), in_runtime.end(),
            [](const auto& a, const auto& b) { return a.thread < b.thread; });
  std::uint64_t number = 0;
  for (const auto& [thread, wait] : in_runtime)
    number = (number ^ static_cast<std::uint64_t>(thread) ^ wait) * 0x9e3779b97f4a7c15;
  return number;
}

}  // namespace

void let_watch_ask_for_blocked_threads() {
  DeadlockWatch::of_this_process().set_blocked_threads(&blocked_threads);
}

}  // namespace vccl
