// VCCL_ALGO: which algorithms somebody wants, by collective and size.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "csrc_pg/collectives/algorithm.hpp"

namespace vccl {

/// One algorithm, and for which sizes of the longest buffer it is wanted.
struct Preference {
  const Algorithm* algorithm;
  std::size_t min_bytes, max_bytes;  // both included
};

/// What the text asks for, in its order:
///
///   choice     = collective ":" algorithms { ";" collective ":" algorithms }
///   algorithms = name [ range ] { "," name [ range ] }
///   range      = "[" [ size ] "-" [ size ] "]"
///   size       = digits [ "K" | "M" | "G" ]
///
/// as in "all_reduce:oneshot[0-4K],direct[4K-1M],ring;broadcast:ring". Blanks between the parts are allowed.
/// The same text gives the same vector, which stays. Throws Error(invalid) that says what is wrong.
const std::vector<Preference>& preferences(const std::string& text);

/// Throws what every call of the communicator would throw for a VCCL_ALGO that cannot be understood; the
/// error names the rank.
void check_algorithm_choice(const Communicator& communicator);

}  // namespace vccl
