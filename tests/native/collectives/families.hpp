// The families in the table of algorithms, and how to ask for one.
#pragma once

#include <set>
#include <string>

#include "csrc_pg/collectives/algorithm.hpp"

namespace vccl {

inline std::set<std::string> families() {
  std::set<std::string> names;
  for (const Algorithm& algorithm : algorithms()) names.insert(algorithm.name);
  return names;
}

/// Returns the collectives that a family has an algorithm for.
inline std::set<Collective> collectives_of(const std::string& family) {
  std::set<Collective> collectives;
  for (const Algorithm& algorithm : algorithms())
    if (algorithm.name == family) collectives.insert(algorithm.collective);
  return collectives;
}

/// Returns a VCCL_ALGO that asks for a family in all its collectives.
inline std::string ask_for(const std::string& family) {
  std::string text;
  for (const Collective collective : collectives_of(family))
    text += std::string(to_string(collective)) + ":" + family + ";";
  return text;
}

}  // namespace vccl
