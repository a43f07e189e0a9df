#include "csrc_pg/operations/profiler_names.hpp"

#include <algorithm>
#include <array>

#include "base/text.hpp"
#include "csrc_device/runtime/environment.hpp"

namespace vccl {
namespace {

struct NamesInNccl {
  std::string_view operation, title, record;
};

// Operations that are not listed have one name everywhere.
constexpr std::array kNamesInNccl = {
    NamesInNccl{"all_reduce", "all_reduce", "allreduce"},
    NamesInNccl{"all_reduce_coalesced", "allreduce_coalesced", "allreduce_coalesced"},
    NamesInNccl{"all_gather_into_tensor", "_all_gather_base", "_allgather_base"},
    NamesInNccl{"all_gather_into_tensor_coalesced", "all_gather_into_tensor_coalesced",
                "allgather_into_tensor_coalesced"},
    NamesInNccl{"reduce_scatter_tensor", "_reduce_scatter_base", "_reduce_scatter_base"},
    NamesInNccl{"all_to_all_single", "all_to_all", "all_to_all"},
    NamesInNccl{"barrier", "all_reduce_barrier", "barrier"},
};

const NamesInNccl* in_nccl(std::string_view operation) {
  if (vdev::pose() != vdev::Pose::cuda) return nullptr;
  const auto found = std::ranges::find(kNamesInNccl, operation, &NamesInNccl::operation);
  return found == kNamesInNccl.end() ? nullptr : &*found;
}

}  // namespace

std::string title_of(std::string_view operation) {
  const auto* names = in_nccl(operation);
  const std::string_view backend = vdev::pose() == vdev::Pose::cuda ? "nccl:" : "vccl:";
  return base::text(backend, names ? names->title : operation);
}

std::string record_of(std::string_view operation) {
  const auto* names = in_nccl(operation);
  return std::string(names ? names->record : operation);
}

std::string run_of(std::string_view operation) {
  return base::text(vdev::pose() == vdev::Pose::cuda ? "ncclDevKernel_" : "vccl.", operation);
}

}  // namespace vccl
