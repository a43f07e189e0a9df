// Calls that all ranks of a group have to make alike.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "transport/store.hpp"

namespace vccl {

/// A call that all ranks of a group have to make alike, and that gives some of them a group of their own:
/// split_group, shrink_group.
struct CommonCall {
  std::string text;                               // "split_group([[0, 1], [2, 3]])"
  std::vector<std::vector<std::uint64_t>> lists;  // the global ranks of the groups that it makes
};

/// Compares the call of global rank `rank` with the call that the first rank left under `key`. `group` is the
/// group that the ranks call on. Throws Error(mismatch) if they differ, and leaves the error in `notices`
/// (CommunicatorConfig::notices) for all ranks of both calls. Costs one use of the store.
void agree_on_call(Store& store, const std::string& key, std::uint64_t rank, const std::string& group,
                   const CommonCall& call, Store* notices);

}  // namespace vccl
