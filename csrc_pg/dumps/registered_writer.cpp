#include "csrc_pg/dumps/registered_writer.hpp"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include <torch/csrc/distributed/c10d/FlightRecorder.hpp>

#include "base/signals.hpp"

namespace vccl {
namespace {

constexpr std::chrono::seconds kWriterPatience{15};  // as long as ProcessGroupNCCL waits for a dump

// DebugInfoWriter::getWriter() registers a writer of its own if there is none, and a program could not
// register another one afterwards. Whether there is one is in a private member, which an explicit
// instantiation may name.
bool flag_is_set() noexcept;
template <std::atomic<bool>* flag>
struct Reach {
  friend bool flag_is_set() noexcept { return flag->load(std::memory_order_acquire); }
};
template struct Reach<&c10d::DebugInfoWriter::hasWriterRegistered_>;

}  // namespace

bool has_registered_writer() noexcept {
  return flag_is_set();
}

void call_registered_writer(int rank, std::string dump) {
  if (!has_registered_writer()) return;
  auto done = std::make_shared<std::promise<void>>();
  const auto end = done->get_future();
  const base::SignalsBlocked blocked;
  std::thread([done, rank, dump = std::move(dump)] {
    try {
      c10d::DebugInfoWriter::getWriter(rank).write(dump);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "[vccl] rank %d: the registered DebugInfoWriter failed: %s\n", rank, error.what());
    }
    done->set_value();
  }).detach();
  if (end.wait_for(kWriterPatience) != std::future_status::ready)
    std::fprintf(stderr, "[vccl] rank %d: the registered DebugInfoWriter did not return in time\n", rank);
}

}  // namespace vccl
