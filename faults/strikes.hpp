// The faults that strike one operation.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "faults/plan.hpp"

namespace vccl::faults {

/// Names an operation or a phase in texts.
struct Place {
  std::string name, group;
  std::uint64_t sequence = 0;
  std::int64_t rank = -1, step = 0;
};

/// Holds the bytes of a buffer that were changed.
class Damage {
 public:
  /// Gives the bytes their values back.
  void undo() noexcept;

 private:
  friend class Strikes;
  struct Changed {
    std::byte* at;
    std::byte was;
  };
  void change(std::byte* at, std::byte to);
  std::vector<Changed> changed_;
};

/// Holds the faults of one operation, and strikes with them. Each strikes once. One thread at a time uses it.
class Strikes {
 public:
  Strikes(Place place, std::vector<Fault> faults) : place_(std::move(place)), faults_(std::move(faults)) {}

  /// Strikes with every fault of this moment but those of strike_at_call() and damage(). May not return.
  void strike(Moment moment);
  /// Does what has to come in the order of the program's calls: throws the exception of a fault of the kind
  /// `raise`, and makes the next allocation on a card fail if that is to happen before the operation.
  void strike_at_call();
  /// Returns how many times as long the operation is to take. At least 1.
  double slowness();
  /// Returns a number that says which element of a product of matrices is to be wrong, if one is.
  std::optional<std::uint64_t> wrong_element();

  /// Changes elements of a buffer that the operation reads (`before`) or has written (`after`). Each element
  /// has `element` bytes. `nan` is the pattern of a NaN, or empty if the elements have none. A call that is
  /// one of several is damaged if it is the first with a buffer.
  Damage damage(Moment moment, std::span<std::byte> buffer, std::size_t element,
                std::span<const std::byte> nan);

 private:
  Place place_;
  std::vector<Fault> faults_;
  bool has_damaged_[2] = {};  // before and after the operation
  bool has_moved_ = false;

  friend void moved() noexcept;
};

/// Makes `strikes`, which may be null, those of the operation that the calling thread runs.
class Running {
 public:
  explicit Running(Strikes* strikes) noexcept;
  ~Running();
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  /// Returns those of the innermost operation, or null.
  static Strikes* current() noexcept;

 private:
  Strikes* const outer_;
};

/// Call this when a block of the calling thread's operation has moved: strikes with what is due in the midst
/// of it.
void moved() noexcept;

/// Notes that a fault strikes, or why it can do nothing here, in this process and in the log. Says so on
/// stderr if the process may not live to.
void note(const Fault& fault, const Place& place, const std::string& why_not = "");

}  // namespace vccl::faults
