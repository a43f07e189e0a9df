// Reads VCCL_ALGO, which says which algorithms somebody wants for which collectives and sizes.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "csrc_pg/collectives/algorithm.hpp"
#include "csrc_pg/collectives/selection/tuned_range.hpp"

namespace vccl {

/// Names an algorithm, and the sizes of the longest buffer for which it is wanted.
struct Preference {
  const Algorithm* algorithm;
  std::size_t min_bytes, max_bytes;  // both included
};

/// Returns what the text asks for, in its order:
///
///   choice     = collective ":" algorithms { ";" collective ":" algorithms }
///   algorithms = name [ range ] { "," name [ range ] }
///   range      = "[" [ size ] "-" [ size ] "]"
///   size       = digits [ "K" | "M" | "G" ]
///
/// as in "all_reduce:oneshot[0-4K],direct[4K-1M],ring;broadcast:ring". Blanks between the words are
/// allowed. The same text always gives the same vector, which is never freed. Throws Error(invalid) that says
/// what is wrong.
const std::vector<Preference>& preferences(const std::string& text);

}  // namespace vccl
