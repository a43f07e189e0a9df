// NCCL connects no two ranks on one card.
#pragma once

#include <string>

#include <c10/core/Device.h>

#include "transport/error.hpp"
#include "transport/rank_names.hpp"

namespace vccl {

/// Returns a text that two processes have in common if the device is the same card for both.
std::string card_key(c10::Device device);

/// Returns the error for ranks `rank` and `other` of a group that both use `device` of `rank`.
Error duplicate_card(const RankNames& names, int rank, int other, c10::Device device);

}  // namespace vccl
