// Decides which faults of a plan strike at a place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "faults/rule.hpp"

namespace vccl::faults {

/// The process that a plan is for.
struct Identity {
  std::int64_t rank = -1;  // in the job; -1 while it is not known
  std::string host;
  std::int64_t restart = 0;  // how often the launcher has started the ranks again
};

/// A fault that is to strike.
struct Fault {
  std::size_t rule = 0;  // its number in the plan
  Kind kind = Kind::kill;
  Moment at = Moment::before;
  double amount = 0;
  std::string type;
  std::uint64_t draw = 0;  // a number for what the fault has to choose, such as a bit
};

/// Holds rules, and counts for each of them the places of this process that it matches.
///
/// What strikes depends on the seed, on the rank, and on what this rank does in the order of its calls. It
/// does not depend on other ranks, on their number, or on time. Thread-safe.
class Plan {
 public:
  Plan(std::vector<Rule> rules, std::uint64_t seed)
      : rules_(std::move(rules)), seed_(seed), counts_(rules_.size()) {}

  /// Returns the faults that strike at this place, in the order of the rules, and counts the place.
  std::vector<Fault> decide(const Identity& self, std::int64_t step, const Site& site);

 private:
  const std::vector<Rule> rules_;
  const std::uint64_t seed_;
  std::mutex mutex_;
  std::vector<std::uint64_t> counts_;  // of the places that each rule matches
};

/// Returns a number that follows from these numbers alone and looks random.
std::uint64_t draw_of(std::uint64_t seed, std::uint64_t rule, std::uint64_t rank,
                      std::uint64_t count) noexcept;

}  // namespace vccl::faults
