#include "include/vccl/group.hpp"

#include <cstdlib>
#include <numeric>

#include "csrc_pg/process_group/process_group.hpp"
#include "include/vccl/device.hpp"

namespace vccl {
namespace {

// How long a process that ends waits for the collectives that it has launched.
constexpr std::chrono::seconds kPatienceAtExit{2};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                             std::chrono::milliseconds timeout, const std::string& name) {
  vdev::initialize();
  // Called before the function that initialize() has registered, so streams still work when the groups close.
  static const int registered = std::atexit([] { ProcessGroupVccl::shutdown_all(kPatienceAtExit); });
  TORCH_INTERNAL_ASSERT(registered == 0);
  auto options = c10::make_intrusive<Options>(timeout);
  options->group_name = name;
  options->global_ranks_in_group.resize(size);
  std::iota(options->global_ranks_in_group.begin(), options->global_ranks_in_group.end(), 0);
  return c10::make_intrusive<ProcessGroupVccl>(store, rank, size, options);
}

}  // namespace vccl
