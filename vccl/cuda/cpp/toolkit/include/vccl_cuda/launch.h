// Launches: what the source rewriter makes of kernel<<<grid, block, shared, stream>>>(arguments).
#pragma once

#include <assert.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "vccl_cuda/errors.h"
#include "vccl_cuda/worker.h"

namespace vccl_cuda VCCL_CUDA_HIDDEN {

struct Config {
  dim3 grid, block;
  std::size_t shared = 0;
  cudaStream_t stream = nullptr;
};

inline Config config(dim3 grid, dim3 block, std::size_t shared = 0, cudaStream_t stream = nullptr) {
  return {grid, block, shared, stream};
}

// What cudaFuncSetAttribute() has allowed. CUDA counts it for each kernel, and here it is for all of them.
inline std::atomic<std::size_t> most_shared{std::size_t{48} << 10};

inline cudaError_t check(const Config& config) {
  const dim3 &grid = config.grid, &block = config.block;
  const unsigned long long threads = 1ull * block.x * block.y * block.z;
  const bool has_none = threads == 0 || grid.x == 0 || grid.y == 0 || grid.z == 0;
  if (has_none || threads > kMostThreads || block.x > 1024 || block.y > 1024 || block.z > 64)
    return cudaErrorInvalidConfiguration;
  if (grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535) return cudaErrorInvalidConfiguration;
  return config.shared > most_shared ? cudaErrorInvalidValue : cudaSuccess;
}

// One run of a grid. Blocks begin in their order, on as many threads of the host as torch's kernels use.
class Grid {
 public:
  Grid(const Config& config, const char* name, void (*run)(const void*), const void* data)
      : config_(config), name_(name), run_(run), data_(data) {}

  void run() {
    // Beginning on other threads costs more than few threads of a kernel take.
    const unsigned long long threads = blocks_ * config_.block.x * config_.block.y * config_.block.z;
    const int workers = threads < 2048 ? 1 : static_cast<int>(std::min(blocks_, kMostWorkers));
    vdev::cuda::run_on_cores(workers, [](void* grid) { static_cast<Grid*>(grid)->run_blocks(); }, this);
    if (!error_.empty()) throw std::runtime_error("CUDA error: unspecified launch failure: " + error_);
  }

 private:
  // Each has a stack for every thread that waits, and a process may have a limited number of mappings.
  static constexpr unsigned long long kMostWorkers = 16;

  void run_blocks() {
    try {
      const dim3& grid = config_.grid;
      Worker& worker = Worker::of_thread();
      for (;;) {
        const unsigned long long number = next_.fetch_add(1, std::memory_order_relaxed);
        if (number >= blocks_ || failed_.load(std::memory_order_relaxed)) return;
        const unsigned row = static_cast<unsigned>(number / grid.x);
        const uint3 block{static_cast<unsigned>(number % grid.x), row % grid.y, row / grid.y};
        const std::string error = worker.run(block, config_.block, grid, config_.shared, run_, data_);
        if (!error.empty()) return fail("the kernel " + std::string(name_) + " cannot go on: " + error);
      }
    } catch (const std::exception& error) {
      fail("the kernel " + std::string(name_) + " found no memory for its threads: " + error.what());
    }
  }
  void fail(std::string what) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (error_.empty()) error_ = std::move(what);
    failed_ = true;
  }

  const Config config_;
  const char* const name_;
  void (*const run_)(const void*);
  const void* const data_;
  const unsigned long long blocks_ = 1ull * config_.grid.x * config_.grid.y * config_.grid.z;
  std::atomic<unsigned long long> next_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::string error_;
};

// A kernel with copies of its arguments.
template <class Call, class... Arguments>
struct Closure {
  Config config;
  const char* name;
  Call call;
  std::tuple<Arguments...> arguments;

  static void run(void* self) {
    const auto& closure = *static_cast<const Closure*>(self);
    Grid(closure.config, closure.name, &run_threads_of, self).run();
  }
  static void drop(void* self) { delete static_cast<Closure*>(self); }
  static void run_threads_of(const void* self) {
    const auto& closure = *static_cast<const Closure*>(self);
    run_threads([&] { std::apply(closure.call, closure.arguments); });
  }
};

class Launch {
 public:
  Launch(const Config& config, const char* name) : config_(config), name_(name) {}

  // `call` gets the arguments and calls the kernel, once for each thread.
  template <class Call, class... Arguments>
  cudaError_t run(const Call& call, Arguments&&... arguments) const {
    using Whole = Closure<Call, std::decay_t<Arguments>...>;
    if (here.worker) here.worker->fail(std::string(name_) + " is launched by a kernel, which cards cannot do");
    if (const cudaError_t wrong = check(config_)) return note_error(wrong);
    return noting_errors([&] {
      auto* const whole = new Whole{
          config_, name_, call, std::tuple<std::decay_t<Arguments>...>(std::forward<Arguments>(arguments)...)};
      vdev::cuda::launch(name_, config_.stream, {&Whole::run, &Whole::drop, whole});
    });
  }

 private:
  const Config config_;
  const char* const name_;
};

// What the rewriter makes of inline PTX, and of assert() in a kernel.
[[noreturn]] inline void no_ptx(const char* text, const char* file, int line) {
  const std::string what = std::string("inline PTX (") + text + ") at " + file + ":" + std::to_string(line) +
                           " runs on GPUs alone";
  if (!here.worker) throw std::runtime_error(what);
  here.worker->fail(what);
}
[[noreturn]] inline void failed_assert(const char* text, const char* file, unsigned line, const char* function) {
  if (!here.worker) __assert_fail(text, file, line, function);
  here.worker->fail(std::string("device-side assert triggered: ") + text + " at " + file + ":" +
                    std::to_string(line));
}

}  // namespace vccl_cuda

[[noreturn]] inline void __trap(VCCL_CUDA_SITE) {
  ::vccl_cuda::here.worker->fail(std::string("__trap() at ") + vccl_site.file + ":" +
                                 std::to_string(vccl_site.line));
}

template <class... Parameters, std::size_t... I>
cudaError_t vccl_cuda_launch_pointers(void (*kernel)(Parameters...), const ::vccl_cuda::Config& config,
                                      void** arguments, std::index_sequence<I...>) {
  return ::vccl_cuda::Launch(config, "a kernel of cudaLaunchKernel")
      .run([kernel](const auto&... values) { kernel(values...); },
           *static_cast<std::remove_cv_t<std::remove_reference_t<Parameters>>*>(arguments[I])...);
}
template <class... Parameters>
cudaError_t cudaLaunchKernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, void** arguments,
                             std::size_t shared = 0, cudaStream_t stream = nullptr) {
  return vccl_cuda_launch_pointers(kernel, ::vccl_cuda::config(grid, block, shared, stream), arguments,
                                   std::index_sequence_for<Parameters...>());
}
