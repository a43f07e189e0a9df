// Vector clocks: what of other lanes' work comes before a point of a lane's work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace sanitizer {

/// Numbers a lane: something whose actions are in order, such as a host thread or a stream.
using Lane = std::uint32_t;
/// Counts the actions of one lane. The first action has the time 1.
using Time = std::uint64_t;

/// Holds, for each lane, the time up to which its actions come before a point. Lanes that are not named have
/// time 0. Lamport's clocks as vectors: Fidge 1988, Mattern 1989.
class VectorClock {
 public:
  Time operator[](Lane lane) const { return lane < times_.size() ? times_[lane] : 0; }
  /// Returns a number that is above that of every lane which has a time.
  std::size_t size() const { return times_.size(); }
  /// Returns whether the action of `lane` at `time` comes before the point.
  bool includes(Lane lane, Time time) const { return (*this)[lane] >= time; }

  /// Returns whether all that comes before the other point comes before this one, too.
  bool includes(const VectorClock& other) const {
    for (std::size_t i = 0; i < other.times_.size(); ++i)
      if (other.times_[i] > (*this)[static_cast<Lane>(i)]) return false;
    return true;
  }

  void set(Lane lane, Time time) {
    if (lane >= times_.size()) times_.resize(lane + 1, 0);
    times_[lane] = time;
  }
  /// Adds all that comes before the other point. Returns whether any of it is new.
  bool join(const VectorClock& other) {
    if (times_.size() < other.times_.size()) times_.resize(other.times_.size(), 0);
    bool any = false;
    for (std::size_t i = 0; i < other.times_.size(); ++i) {
      if (other.times_[i] <= times_[i]) continue;
      times_[i] = other.times_[i];
      any = true;
    }
    return any;
  }

  /// The number of the detector whose lanes these are; 0 for none.
  std::uint64_t detector = 0;

 private:
  std::vector<Time> times_;
};

/// A recorded point, which never changes. Null is a point that nothing comes before.
using Point = std::shared_ptr<const VectorClock>;

}  // namespace sanitizer
