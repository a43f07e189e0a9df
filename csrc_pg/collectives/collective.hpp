// The collectives: their names, and which of them reduce or have a root.
#pragma once

#include <cstdint>

namespace vccl {

/// The numbers travel in signatures.
enum class Collective : std::uint8_t {
  all_reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  reduce,
  gather,
  scatter,
  all_to_all,
  barrier,
  message,  // one send and its receive, which run() does not do: see transport/messages.hpp
};

/// Returns the name as it appears in errors and in VCCL_ALGO: "all_reduce".
const char* to_string(Collective) noexcept;
bool is_reduction(Collective) noexcept;
bool has_root(Collective) noexcept;

}  // namespace vccl
