// What races/ knows of the process: the detectors, the lanes and the places of the program.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/fork.hpp"
#include "csrc_device/torch/races/watch.hpp"

namespace vdev::races {

/// Numbers the lanes of a process, and knows how to call them. Thread-safe.
class Lanes {
 public:
  static constexpr Lane kMain = 0;

  /// Returns the lane of that owner, and makes it at the first call with the text that `describe` returns.
  template <class Describe>
  Lane of(const void* owner, std::int64_t number, const Describe& describe) {
    const std::lock_guard lock(mutex_);
    const auto [found, is_new] = known_.try_emplace({owner, number}, 0);
    if (is_new) found->second = add(describe());
    return found->second;
  }
  /// Returns a lane for a thread that begins after `start`. It may be that of a thread that has ended before.
  Lane begin_thread(const Point& start, std::string text);
  /// Takes a lane back whose thread has ended at `end`.
  void end_thread(Lane lane, const Point& end);
  LaneText text_of(Lane lane);
  Lane count();
  /// Returns the lanes of a card's streams and operations.
  std::vector<Lane> of_card(int card);

 private:
  Lane add(LaneText text);

  std::mutex mutex_;
  std::deque<LaneText> texts_{{LaneText::Kind::host, "the main thread"}};
  std::map<std::pair<const void*, std::int64_t>, Lane> known_;
  std::vector<std::pair<Lane, sanitizer::Time>> ended_threads_;
};

/// Numbers the calls of the program. Thread-safe.
class Sites {
 public:
  Site add(const char* call, const PythonLine& line);
  SiteText text_of(Site site);

 private:
  std::mutex mutex_;
  std::unordered_map<const PythonLine*, std::map<std::string, Site, std::less<>>> known_;
  std::vector<std::pair<std::string, const PythonLine*>> texts_{{}};  // by number; 0 is no site
};

class Processes;

struct Watch {
  sanitizer::Detector detector;
  Lanes lanes;
  Sites sites;
  Options options;
  std::function<void(const Report&)> report;

  /// Returns the detector that follows what `stream` is given: that of its capture, or the program's.
  std::shared_ptr<sanitizer::Detector> of(const Stream& stream);

  std::mutex mutex;  // guards `captures` and `processes`
  std::map<const Capture*, std::shared_ptr<sanitizer::Detector>> captures;
  std::shared_ptr<Processes> processes;  // null while nothing is shared with other processes

  /// Returns the process's. start() makes a new one, and those of the past are never destroyed.
  static Watch& get();
};

}  // namespace vdev::races
