#include "csrc_pg/collectives/collective.hpp"

namespace vccl {

const char* to_string(Collective collective) noexcept {
  switch (collective) {
    case Collective::all_reduce:
      return "all_reduce";
    case Collective::broadcast:
      return "broadcast";
    case Collective::all_gather:
      return "all_gather";
    case Collective::reduce_scatter:
      return "reduce_scatter";
    case Collective::reduce:
      return "reduce";
    case Collective::gather:
      return "gather";
    case Collective::scatter:
      return "scatter";
    case Collective::all_to_all:
      return "all_to_all";
    case Collective::barrier:
      return "barrier";
    case Collective::message:
      return "message";
  }
  return "unknown collective";
}

bool is_reduction(Collective collective) noexcept {
  return collective == Collective::all_reduce || collective == Collective::reduce_scatter ||
         collective == Collective::reduce;
}

bool has_root(Collective collective) noexcept {
  return collective == Collective::broadcast || collective == Collective::reduce ||
         collective == Collective::gather || collective == Collective::scatter;
}

}  // namespace vccl
