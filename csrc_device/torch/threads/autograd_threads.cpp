#include "csrc_device/torch/threads/autograd_threads.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/streams.hpp"

namespace vdev {
namespace {

// Returns whether torch has started its device threads. It names them pt_autograd_N and starts all of them
// with the first backward on any card.
bool have_started() {
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm") >> std::ws, name);
    if (name.rfind("pt_autograd_", 0) == 0) {
      return true;
    }
  }
  return false;
}

// Runs an empty backward on each card's thread. The thread takes its tasks in order and releases the one
// before first. The empty backward holds no Python object, because it does not come from Python.
void run_empty_backwards() {
  for (int index = 0; index < card_count(); ++index) {
    if (card_used(index)) {
      const auto options = at::TensorOptions().dtype(at::kFloat).device(device_of(index));
      const at::Tensor input = at::empty({0}, options).set_requires_grad(true);
      torch::autograd::grad({input.view({0})}, {input}, {at::empty({0}, options)});
    }
  }
}

}  // namespace

void settle_autograd_threads(std::chrono::milliseconds patience) {
  if (in_bad_fork() || !any_card_used() || !have_started()) {
    return;
  }
  // The backwards run on a thread of their own, which is left behind if another backward is still running,
  // such as a daemon thread's.
  auto done = std::make_shared<std::promise<void>>();
  std::future<void> settled = done->get_future();
  std::thread([done] {
    try {
      run_empty_backwards();
    } catch (const std::exception&) {
      // Nothing depends on this at exit, and no caller could handle the error.
    }
    done->set_value();
  }).detach();
  settled.wait_for(patience);
}

}  // namespace vdev
