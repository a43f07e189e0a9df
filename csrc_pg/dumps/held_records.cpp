#include "csrc_pg/dumps/held_records.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "csrc_pg/dumps/own_flight_recorder.hpp"
#include "recorder/flight_reader.hpp"
#include "transport/deadline.hpp"

namespace vccl {
namespace {

constexpr Milliseconds kHoldPatience{1000}, kFirstHoldPause{1}, kLongestHoldPause{32};

/// Returns the ranks, as the job counts them, whose recorders this rank holds.
std::set<int> ranks_to_hold(const Communicator& communicator) {
  std::vector<int> here;
  for (int rank = 0; rank < communicator.size(); ++rank)
    if (communicator.host_of(rank) == communicator.host_of(communicator.rank())) here.push_back(rank);
  std::set<int> held;
  const auto add = [&](int rank) { held.insert(static_cast<int>(communicator.names().in_job(rank))); };
  if (here.size() > 1 && communicator.rank() == here[0]) std::for_each(here.begin() + 1, here.end(), add);
  if (here.size() > 1 && communicator.rank() == here[1]) add(here[0]);
  return held;
}

}  // namespace

void HeldRecords::hold(const Communicator& communicator) {
  const auto& own = own_flight_recorder();
  std::set<int> wanted = ranks_to_hold(communicator);
  if (!own.enabled() || wanted.empty()) return;
  const auto job = get_text(own.process().job);
  const auto deadline = Deadline::in(kHoldPatience);
  for (auto pause = kFirstHoldPause;; pause = std::min(2 * pause, kLongestHoldPause)) {
    for (FoundRecorder& found : find_flight_recorders()) {
      if (!found.reader || !found.alive) continue;
      try {
        const auto process = found.reader->read_process();
        if (get_text(process.job) == job && wanted.erase(process.rank) == 1)
          files_.push_back(std::move(found.descriptor));
      } catch (const FlightRefused&) {
        // It was damaged meanwhile, and nobody could read it later.
      }
    }
    if (wanted.empty() || deadline.passed()) return;
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace vccl
