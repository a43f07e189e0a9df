// The faults of this process: the plan that is switched on, and what has struck so far.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "faults/plan.hpp"
#include "faults/strikes.hpp"

namespace vccl::faults {

/// What only the rooms above can do. Each is called on the thread on which the fault strikes.
struct Handlers {
  /// Raises a Python exception of the type with this name.
  void (*raise)(const std::string& type, const std::string& text) = nullptr;
  /// Makes the next allocation on a card fail.
  void (*fail_allocation)() = nullptr;
  /// Returns the other processes of this rank's host that are ranks of the same job.
  std::vector<int> (*ranks_of_host)() = nullptr;
  /// Strikes this process's links to other hosts. Returns why there is nothing to strike, or an empty text.
  std::string (*strike_links)(const Fault& fault) = nullptr;
  /// Ends what lasts of that.
  void (*heal_links)() noexcept = nullptr;
  /// Is told of each fault that strikes, before it does: "kill during all_reduce 3 of group dp, step 2".
  void (*tell)(const std::string& fault) noexcept = nullptr;
};

namespace detail {
// Relaxed: who sees it late misses a place that is no earlier than the call that switched the plan on.
inline std::atomic<bool> is_on{false}, was_on{false};
}  // namespace detail

/// Returns whether a plan is switched on. This is all that a place costs otherwise.
inline bool on() noexcept {
  return detail::is_on.load(std::memory_order_relaxed);
}

/// Returns whether a plan was ever switched on. Operations of a plan that is off again may still be under
/// way.
inline bool ever_on() noexcept {
  return detail::was_on.load(std::memory_order_relaxed);
}

/// Switches a plan on in place of the last one, or every plan off if it is null. Returns the last one, whose
/// lasting faults are over.
std::shared_ptr<Plan> switch_on(std::shared_ptr<Plan> plan);
void set_handlers(const Handlers& handlers);
/// Names the file to which each fault that strikes is appended as a line of JSON. An empty path stands for
/// none.
void set_log(const std::string& path);
/// Tells who this process is.
void identify(const Identity& self);
/// Sets the number of the program's step.
void set_step(std::int64_t step) noexcept;
std::int64_t step() noexcept;

/// Returns the faults that strike at this place, or null. Call this in the order of the program's calls, and
/// only if on().
std::shared_ptr<Strikes> decide(const Site& site);
/// Strikes at the begin of a phase of the program. Returns the phase's faults, or null; call
/// strike(Moment::after) of them at the phase's end. Throws what Strikes::strike_at_call() throws.
std::shared_ptr<Strikes> begin_phase(std::string_view phase, std::string_view group,
                                     std::string_view description = {});

/// A fault that has struck, or that was due and could do nothing.
struct Struck {
  std::int64_t rank = -1, step = 0;
  std::string place, group;  // "all_reduce", "init"
  std::uint64_t sequence = 0;
  std::string kind, moment;
  double time = 0;  // seconds since 1970
  std::size_t rule = 0;
  std::string why_not;  // empty if it has struck
};
/// Returns what has struck in this process: the first kMostStruck. `count` gets the number of all.
std::vector<Struck> struck(std::uint64_t& count);
inline constexpr std::size_t kMostStruck = 10'000;

}  // namespace vccl::faults
